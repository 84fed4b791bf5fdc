package vhostnet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// bare is a guest whose memory can be cut short, without a conversation.
type bare struct {
	t      testing.TB
	port   *vhostnet.Port
	file   int
	mem    []byte
	state  vhostuser.State
	maps   []*vhostuser.Mapping
	ledger []byte
	rx, tx *vhosttest.Queue
	at     [bareSize]uint64 // of receive buffers, by id
	sent   uint64
	buf    []byte
}

const (
	bareRx    = 0x10000 // where it has its queues
	bareTx    = 0x20000
	bareBufs  = 0x40000 // receive buffers of 2 KiB, behind them those that it sends from
	bareSize  = 64      // entries of each queue
	bareSlot  = 0x4000
	bareMem   = bareBufs + bareSize*(2048+bareSlot)
	bareSends = bareBufs + bareSize*2048
)

func newBare(t testing.TB, packed bool) *bare {
	t.Helper()
	g := &bare{t: t, ledger: make([]byte, vhostnet.LedgerBytes(1)), buf: make([]byte, 1<<16)}
	var err error
	if g.file, err = unix.MemfdCreate("bare", unix.MFD_CLOEXEC); err == nil {
		if err = unix.Ftruncate(g.file, bareMem); err == nil {
			g.mem, err = unix.Mmap(g.file, 0, bareMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	g.state = vhostuser.State{Features: vhostuser.FeatureVersion1 | 1<<15, Regions: []vhostuser.Region{{Size: bareMem}}, Vrings: make([]vhostuser.Vring, 2)}
	if packed {
		g.state.Features |= vhostuser.FeaturePacked
	}
	g.maps = []*vhostuser.Mapping{{Region: g.state.Regions[0], Mem: g.mem}}
	g.rx = vhosttest.NewQueue(g.mem, vhosttest.QueueConfig{At: bareRx, Size: bareSize, Packed: packed})
	g.tx = vhosttest.NewQueue(g.mem, vhosttest.QueueConfig{At: bareTx, Size: bareSize, Packed: packed})
	for i, q := range []*vhosttest.Queue{g.rx, g.tx} {
		v := &g.state.Vrings[i]
		v.Num = bareSize
		v.Desc, v.Avail, v.Used = q.Parts()
		v.Base = q.Base()
	}
	for i := range uint64(bareSize) {
		g.offer(bareBufs + i*2048)
	}
	g.rx.Show()
	t.Cleanup(func() {
		g.port.Close()
		_, _ = unix.Munmap(g.mem), unix.Close(g.file)
	})
	g.serve()
	return g
}

// serve is another process that goes on with the rings as they are.
func (g *bare) serve() {
	g.t.Helper()
	if g.port != nil {
		_ = g.port.Close()
	}
	var err error
	if g.port, err = vhostnet.New(vhostnet.Config{Name: "bare", MTU: 1500, Ledger: g.ledger, Post: func(f func()) bool { f(); return true }}); err != nil {
		g.t.Fatal(err)
	}
	if err = g.port.SetMemory(&g.state, g.maps); err != nil {
		g.t.Fatal(err)
	}
	for i := range g.state.Vrings {
		if err = g.port.StartVring(&g.state, i, -1, -1, -1); err != nil && i == 0 { // a transmit ring needs a kick descriptor, and this one has none
			g.t.Fatal(err)
		}
	}
}

// restart is serve in place of a process that was killed.
func (g *bare) restart() {
	g.t.Helper()
	for i := range g.state.Vrings {
		g.state.Vrings[i].NoBase = true
	}
	g.serve()
}

// send puts a frame with a number in its memory.
func (g *bare) send(number uint32, size int) {
	g.t.Helper()
	at := bareSends + g.sent%bareSize*bareSlot
	g.sent++
	b := g.mem[at : at+uint64(12+size)]
	for i := range b[12:] {
		b[12+i] = byte(number + uint32(i)*7)
	}
	binary.LittleEndian.PutUint32(b[12+20:], number)
	if _, ok := g.tx.Add(vhosttest.Buffer{Addr: at, Len: uint32(len(b))}); !ok {
		g.t.Fatal("no room")
	}
	g.tx.Show()
}

// back returns the number of completed chains.
func (g *bare) back() (n int) {
	for {
		if _, _, ok := g.tx.Used(); !ok {
			return n
		}
		n++
	}
}

// offer gives the device a receive buffer.
func (g *bare) offer(at uint64) {
	id, ok := g.rx.Add(vhosttest.Buffer{Addr: at, Len: 2048, Write: true})
	if !ok {
		g.t.Fatal("no room")
	}
	g.at[id] = at
}

// received returns the numbers of the frames that arrived, all of which must be complete.
func (g *bare) received(size int) (numbers []uint32) {
	g.t.Helper()
	var frame []byte
	for {
		id, n, ok := g.rx.Used()
		if !ok {
			g.rx.Show()
			return numbers
		}
		frame = append(frame, g.mem[g.at[id]:g.at[id]+uint64(n)]...)
		g.offer(g.at[id])
		if len(frame) < 12+size {
			continue
		}
		number := binary.LittleEndian.Uint32(frame[12+20:])
		for i, c := range frame[12:] {
			if (i < 20 || i >= 24) && c != byte(number+uint32(i)*7) {
				g.t.Fatalf("frame %d: byte %d is %d", number, i, c)
			}
		}
		numbers, frame = append(numbers, number), nil
	}
}

func (g *bare) cut() {
	if err := unix.Ftruncate(g.file, bareBufs); err != nil {
		g.t.Fatal(err)
	}
}

// TestMemoryThatVanishesFailsItsPort: the port of the guest whose memory is gone stops, and the
// other guest's rings are as if nothing had happened.
func TestMemoryThatVanishesFailsItsPort(t *testing.T) {
	const size = 6000
	for _, packed := range []bool{false, true} {
		for _, what := range []string{"source", "destination", "fetch", "return"} {
			t.Run(fmt.Sprintf("%s,packed=%v", what, packed), func(t *testing.T) {
				from, to, third := newBare(t, packed), newBare(t, packed), newBare(t, packed)
				from.send(1, size)
				third.send(2, size)
				n, rest, off := from.port.Read(from.buf)
				m, other, _ := third.port.Read(third.buf)
				if rest == nil || other == nil {
					t.Fatal("nothing is left")
				}
				guilty, innocent := from, to
				switch what {
				case "source":
					from.cut()
					if to.port.WriteWith(from.buf[:n], rest, off) {
						t.Error("written")
					}
				case "destination":
					guilty, innocent = to, from
					to.cut()
					if to.port.WriteWith(from.buf[:n], rest, off) {
						t.Error("written")
					}
				case "fetch":
					from.cut()
					if rest.Fetch() || to.port.WriteWith(from.buf[:n], rest, off) {
						t.Error("there is something")
					}
				case "return":
					from.cut()
					from.port.Return()
					if rest.Fetch() {
						t.Error("there is something")
					}
				}
				if why := guilty.port.Reason(); !strings.Contains(why, "cut short") {
					t.Errorf("reason %q", why)
				}
				if why := innocent.port.Reason(); why != "" {
					t.Errorf("the other has a reason: %s", why)
				}
				from.port.Return()
				if back := from.back(); guilty == to != (back == 1) {
					t.Errorf("%d chains back", back)
				}
				if guilty == from { // a third guest can still send to the receiver
					if !to.port.WriteWith(third.buf[:m], other, off) {
						t.Fatal("not written")
					}
					third.port.Return()
					to.port.Settle()
					if got := to.received(size); len(got) != 1 || got[0] != 2 || third.back() != 1 {
						t.Errorf("received %v", got)
					}
				}
			})
		}
	}
}

// TestCopiedBytesOutliveTheMemory: bytes that were copied before the guest's memory was removed are
// still there; the others are lost.
func TestCopiedBytesOutliveTheMemory(t *testing.T) {
	const size = 6000
	g := newBare(t, false)
	type read struct {
		buf  []byte
		n    int
		rest *vhostnet.Rest
	}
	var all [3]read
	for i := range all {
		g.send(uint32(i), size)
		all[i].buf = make([]byte, size)
		if all[i].n, all[i].rest, _ = g.port.Read(all[i].buf); all[i].rest == nil {
			t.Fatal("nothing is left")
		}
	}
	want := bytes.Clone(g.mem[bareSends+12:][:size])
	if !all[0].rest.Fetch() {
		t.Fatal("not copied")
	}
	g.cut()
	if all[1].rest.Fetch() || all[2].rest.Fetch() {
		t.Error("something was copied of memory that is gone")
	}
	if !all[0].rest.Fetch() || !bytes.Equal(all[0].buf[:all[0].n+all[0].rest.Len()], want) {
		t.Error("what was copied before is lost")
	}
}

// TestNoFrameIsLostByADeathBetween: the process that serves two guests may be killed between any
// two steps of frames from one to the other. The next process continues: no frame comes twice or
// out of order, and no buffer is lost.
func TestNoFrameIsLostByADeathBetween(t *testing.T) {
	const size, frames = 5000, 40
	for _, packed := range []bool{false, true} {
		for kill := range 5 {
			t.Run(fmt.Sprintf("step %d,packed=%v", kill, packed), func(t *testing.T) {
				from, to := newBare(t, packed), newBare(t, packed)
				var got []uint32
				back, sent := 0, uint32(0)
				for turn := 0; back < frames; turn++ {
					for int(sent)-back < 8 && sent < frames {
						sent++
						from.send(sent, size)
					}
					killed := turn%3 == 1
					type read struct {
						buf  []byte
						rest *vhostnet.Rest
					}
					var batch []read
					for range 5 {
						buf := make([]byte, size)
						n, rest, _ := from.port.Read(buf)
						if n == 0 {
							break
						}
						batch = append(batch, read{buf[:n], rest})
					}
					for i, r := range batch {
						if killed && kill == 0 || killed && kill == 1 && i == 2 {
							break
						}
						to.port.WriteWith(r.buf, r.rest, vhostnet.Offload{})
					}
					if !killed || kill > 2 {
						from.port.Return()
					}
					if !killed || kill > 3 {
						to.port.Settle()
					}
					if killed {
						from.restart()
						to.restart()
					}
					back += from.back()
					got = append(got, to.received(size)...)
				}
				for i := 1; i < len(got); i++ {
					if got[i] <= got[i-1] {
						t.Fatalf("frames %v", got)
					}
				}
				if len(got) < frames/3 {
					t.Errorf("%d frames came", len(got))
				}
				if from.back() != 0 || back != frames {
					t.Errorf("%d chains back", back)
				}
			})
		}
	}
}

// TestNoAllocationsBetween: a frame whose end goes from guest to guest allocates nothing, either.
func TestNoAllocationsBetween(t *testing.T) {
	eachDriver(t, func(t *testing.T, o vhosttest.NetOptions) {
		from, to := newGuestPort(t, vhostnet.Config{}, o), newGuestPort(t, vhostnet.Config{}, o)
		buf, frame := make([]byte, 1<<16), frameOf(rand.New(rand.NewPCG(1, 1)), 5000)
		for range 200 {
			from.guest.Post(0, vhosttest.Header{}, frame)
		}
		from.guest.Notify(0)
		if n := allocs.PerRun(50, func() {
			n, rest, off := from.port.Read(buf)
			if rest == nil || !to.port.WriteWith(buf[:n], rest, off) {
				t.Fatal("not written")
			}
			from.port.Return()
			to.port.Settle()
		}); n != 0 {
			t.Errorf("%v allocations per frame", n)
		}
	})
}

// TestEndsOfFramesAreLeftWhileThereIsRoom: the end of a long frame stays in guest memory as long as
// there is room to record it: 64 ends for a port, in 256 pieces.
func TestEndsOfFramesAreLeftWhileThereIsRoom(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parts []int // of each chain
		left  int   // of 70 frames
	}{
		{"shorter", []int{12 + vhostnet.MinRest - 1}, 0},
		{"long", []int{12 + vhostnet.MinRest}, 64},
		{"header apart", []int{12, vhostnet.MinRest}, 64},
		{"4 pieces", []int{312, 2000, 2000, 2000}, 64},
		{"5 pieces", []int{312, 1000, 1000, 1000, 1000}, 51},
		{"8 pieces", []int{312, 800, 800, 800, 800, 800, 800, 800}, 32},
		{"4 pieces of 8", []int{6, 6, 128, 128, 2000, 2000, 2000, 2000}, 63},
	} {
		d := newRingPort(t, vhostuser.FeatureVersion1|indirect, 1, 128)
		size := -12
		for _, n := range tt.parts {
			size += n
		}
		bufs := make([][]byte, 70)
		rests := make([]*vhostnet.Rest, 70)
		left := 0
		for i := range bufs {
			mem, _ := d.add(1, false, tt.parts...)
			for k := range mem[12:] {
				mem[12+k] = byte(i + k*7)
			}
			bufs[i] = make([]byte, size)
			n, rest, _ := d.Read(bufs[i])
			if rests[i] = rest; rest != nil {
				left++
				n += rest.Len()
			}
			if n != size {
				t.Fatalf("%s: frame %d has %d bytes, want %d", tt.name, i, n, size)
			}
		}
		if left != tt.left {
			t.Errorf("%s: %d ends are left, want %d", tt.name, left, tt.left)
		}
		d.Return()
		d.Settle()
		if n := len(d.used(1)); n != 70 || d.Reason() != "" {
			t.Errorf("%s: %d chains came back, %s", tt.name, n, d.Reason())
		}
		for i, b := range bufs {
			if rests[i] != nil && !rests[i].Fetch() {
				t.Errorf("%s: frame %d is lost", tt.name, i)
			}
			for k := range b {
				if b[k] != byte(i+k*7) {
					t.Fatalf("%s: byte %d of frame %d is %#x", tt.name, k, i, b[k])
				}
			}
		}
	}
}
