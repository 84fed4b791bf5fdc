package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// FuzzPort runs two ports over whatever guests may have in their memory, which changes meanwhile.
// Frames go from the first to both.
func FuzzPort(f *testing.F) {
	const size, end = 8, 8192
	desc := func(b []byte, addr uint64, n uint32, x, y uint16) []byte {
		b = binary.LittleEndian.AppendUint64(b, addr)
		b = binary.LittleEndian.AppendUint32(b, n)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, x), y)
	}
	// Receive ring at 0, available and used behind it; transmit ring at 256; buffers from 512 on.
	for _, long := range []uint32{90, 6000} {
		split := desc(desc(make([]byte, 0, end), 512, 100+long, 2, 0), 640, 300+long, 2, 0)
		split = append(split[:128], 0, 0, 2, 0, 0, 0, 1, 0)
		split = desc(split[:256], 512, 12, 1, 1)
		split = desc(split, 524, long, 0, 0)
		split = append(split[:384], 0, 0, 1, 0)
		f.Add(split, uint64(1), uint64(0))
		f.Add(split, uint64(2), uint64(1<<15|1<<28|1<<29))
		ring := desc(desc(make([]byte, 0, end), 512, 100+long, 0, 0x82), 640, 300+long, 1, 0x82)
		ring = desc(ring[:256], 512, 12, 0, 0x81)
		ring = desc(ring, 524, long, 0, 0x80)
		f.Add(ring, uint64(3), uint64(1<<15|1<<34))
		f.Add(ring, uint64(4), uint64(1<<28|1<<29|1<<34))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed, features uint64) {
		mem, other := make([]byte, end), make([]byte, end)
		copy(mem, b)
		copy(other, b)
		st := &vhostuser.State{Features: features & vhostnet.Features(1), Regions: []vhostuser.Region{{Size: end}}, Vrings: make([]vhostuser.Vring, 2)}
		for i := range st.Vrings {
			at := uint64(i) * 256
			st.Vrings[i] = vhostuser.Vring{Num: size, Desc: at, Avail: at + 128, Used: at + 160}
			if st.Packed() {
				st.Vrings[i].Base = 0x8000
			}
		}
		p, to := fuzzed(t, st, mem), fuzzed(t, st, other)
		rng := rand.New(rand.NewPCG(seed, 1))
		buf := make([]byte, 7000)
		var rest *vhostnet.Rest
		n := 0
		for range 64 {
			switch rng.IntN(8) {
			case 0, 1:
				if n, rest, _ = p.Read(buf); rest == nil {
					if n != 0 && n < 14 || n > len(buf) {
						t.Fatalf("a frame of %d bytes", n)
					}
				} else if n < 128 || n+rest.Len() > len(buf) {
					t.Fatalf("a frame of %d bytes and %d", n, rest.Len())
				}
			case 2:
				p.Write([][]byte{buf[:60], buf[:rng.IntN(140)]}, vhostnet.Offload{GSO: 1, NeedsCsum: true, Size: 9})
			case 3:
				p.Settle()
				to.Settle()
			case 4:
				p.Wake()
			case 5:
				if rest != nil {
					was := bytes.Clone(buf[:n])
					to.WriteWith(buf[:n], rest, vhostnet.Offload{})
					if !bytes.Equal(was, buf[:n]) {
						t.Fatal("what was read has changed")
					}
				}
			case 6:
				if rest != nil && rng.IntN(2) == 0 {
					rest.Fetch()
				}
			default:
				p.Arm()
			}
			mem[rng.IntN(end)] = byte(rng.Uint32())
			other[rng.IntN(512)] = byte(rng.Uint32())
		}
		for i := range st.Vrings {
			p.StopVring(i)
			to.StopVring(i)
		}
	})
}

// fuzzed is a port that serves rings in memory.
func fuzzed(t *testing.T, st *vhostuser.State, mem []byte) *vhostnet.Port {
	p, err := vhostnet.New(vhostnet.Config{
		Name: "fuzz", MTU: 1500, Ledger: make([]byte, vhostnet.LedgerBytes(1)),
		Post: func(f func()) bool { f(); return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.SetMemory(st, []*vhostuser.Mapping{{Region: st.Regions[0], Mem: mem}}); err != nil {
		t.Fatal(err)
	}
	for i := range st.Vrings {
		if err := p.StartVring(st, i, -1, -1, -1); err != nil && i == 0 {
			t.Fatal(err)
		}
	}
	return p
}

// script is a conversation as a fuzzer writes it.
type script []byte

func (s *script) next() uint64 {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return uint64(b)
}

// things are descriptors of every kind that a front end may pass.
func things(t *testing.T) (fds []int) {
	t.Helper()
	for _, size := range []int64{1 << 20, 1 << 45} {
		fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, size)
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	for range 2 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fds = append(fds, null)
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
	return fds
}

// FuzzConversation holds whole conversations with a port, whatever a front end may say in whatever
// order, with descriptors of every kind, while frames go both ways: it stays within its budget of
// memory, ends, and leaves nothing behind.
func FuzzConversation(f *testing.F) {
	// A driver's start: features, memory, a ring of each kind, its descriptors, and frames.
	start := []byte{0, 0, 1, 0, 16, 0, 0}
	for _, ring := range []byte{0, 1} {
		start = append(start, 4, ring, 3, 5, ring, 0, 6, ring, 1+4*ring, 7, ring, 0, 2, 7, ring, 1, 3, 8, ring, 1)
	}
	f.Add(append(start, 11, 11, 8, 1, 0, 2, 0, 16, 0))
	f.Add([]byte{0, 3, 1, 0, 16, 0, 1, 1, 0, 255, 9, 1, 3, 2, 0, 16, 0, 32, 16, 16, 0, 10, 5, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		fds := things(t)
		before := openFiles(t)
		var thread sync.Mutex
		p, err := vhostnet.New(vhostnet.Config{
			Name: "fuzz", MTU: 1500, Queues: 2, Ledger: make([]byte, vhostnet.LedgerBytes(2)),
			Post: func(f func()) bool { thread.Lock(); defer thread.Unlock(); f(); return true },
		})
		if err != nil {
			t.Fatal(err)
		}
		budget := guestmem.NewBudget("fuzz", guestmem.Limit{Bytes: 1 << 44, Maps: 8})
		near, far, err := sockettest.New()
		if err != nil {
			t.Fatal(err)
		}
		ended, drained := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = vhostuser.Serve(far, p, budget)
			_ = far.Close()
		}()
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, near)
		}()
		frame := make([]byte, 70_000)
		for s := script(b[:min(len(b), 300)]); len(s) > 0; {
			if s.play(near, fds) != nil {
				break
			}
			thread.Lock()
			_, rest, _ := p.Read(frame)
			p.Write([][]byte{frame[:14+s.next()]}, vhostnet.Offload{})
			if rest != nil {
				rest.Fetch()
			}
			p.Settle()
			p.Arm()
			thread.Unlock()
			if u := budget.Usage(); u.Bytes > 1<<44 || u.Maps > 8 {
				t.Fatalf("%+v is mapped", u)
			}
		}
		_ = near.CloseWrite()
		<-ended
		<-drained
		_ = near.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if u := budget.Usage(); u.Maps != 0 || u.Bytes != 0 {
			t.Errorf("%+v is still mapped", u)
		}
		for end := time.Now().Add(time.Minute); openFiles(t) > before; time.Sleep(time.Millisecond) { // the line's thread closes some
			if time.Now().After(end) {
				t.Fatalf("%d descriptors became %d", before, openFiles(t))
			}
		}
	})
}

// play says one thing.
func (s *script) play(to *net.UnixConn, fds []int) error {
	fd := func() []int { return fds[s.next()%uint64(len(fds)):][:1] }
	region := func() vhostuser.Region {
		at := s.next() << 12
		return vhostuser.Region{GPA: at, User: at, Size: 1 << (s.next() % 48), Offset: s.next() << 12}
	}
	ring := func() uint32 { return uint32(s.next() % 5) }
	say := func(req vhostuser.Request, payload []byte, fds ...int) error {
		return vhostuser.WriteMessage(to, req, vhostuser.FlagNeedReply, payload, fds...)
	}
	switch s.next() % 12 {
	case 0:
		features := [...]uint64{0, vhostuser.FeaturePacked, 1 << 15, 1 << 28, 1 << 29, vhostuser.FeaturePacked | 1<<28}
		return say(vhostuser.SetFeatures, vhosttest.U64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol|features[s.next()%6]))
	case 1:
		r := region()
		return say(vhostuser.AddMemReg, r.Append(make([]byte, 8)), fd()...)
	case 2:
		return say(vhostuser.RemMemReg, region().Append(make([]byte, 8)))
	case 3:
		rs := []vhostuser.Region{region(), region()}
		return say(vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, rs), append(slices.Clone(fd()), fd()...)...)
	case 4:
		return say(vhostuser.SetVringNum, vhostuser.VringState{Index: ring(), Num: 1 << (s.next() % 17)}.Append(nil))
	case 5:
		return say(vhostuser.SetVringBase, vhostuser.VringState{Index: ring(), Num: uint32(s.next() << 8)}.Append(nil))
	case 6:
		i, at := ring(), s.next()<<12
		return say(vhostuser.SetVringAddr, vhostuser.VringAddr{Index: i, Desc: at, Avail: at + s.next()<<4, Used: at + s.next()<<4}.Append(nil))
	case 7:
		i, req := uint64(ring()), []vhostuser.Request{vhostuser.SetVringKick, vhostuser.SetVringCall, vhostuser.SetVringErr}[s.next()%3]
		return say(req, vhosttest.U64(i), fd()...)
	case 8:
		return say(vhostuser.SetVringEnable, vhostuser.VringState{Index: ring(), Num: uint32(s.next() & 1)}.Append(nil))
	case 9:
		return say(vhostuser.GetVringBase, vhostuser.VringState{Index: ring()}.Append(nil))
	case 10:
		return say(vhostuser.Request(s.next()), make([]byte, s.next()), fd()...)
	default: // what is in its memory changes
		_, err := unix.Pwrite(fds[0], []byte{byte(s.next()), byte(s.next())}, int64(s.next()<<4|s.next()&15))
		return err
	}
}

// openFiles is how many descriptors this process has.
func openFiles(t *testing.T) int {
	t.Helper()
	ds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ds)
}
