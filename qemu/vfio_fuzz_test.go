package qemu

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// vfioScript is a conversation as a fuzzer writes it.
type vfioScript []byte

func (s *vfioScript) next() uint64 {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return uint64(b)
}

// play says one thing, after the greeting.
func (s *vfioScript) play(to *net.UnixConn, fds []int) error {
	say := func(cmd vfiouser.Command, body []byte, fds ...int) error {
		h := vfiouser.Header{Command: cmd, Flags: vfiouser.FlagNoReply * uint32(s.next()&1), Size: uint32(vfiouser.HeaderSize + len(body))}
		return fdpass.WriteAll(to, append(h.Append(nil), body...), fds...)
	}
	span := func() vfiouser.Range { return vfiouser.Range{Addr: s.next() << 12, Size: 1 << (s.next() % 48)} }
	some := func() []int {
		at := s.next() % uint64(len(fds))
		return fds[at:min(uint64(len(fds)), at+s.next()%4)]
	}
	switch s.next() % 8 {
	case 0, 1:
		m := vfiouser.Map{Flags: uint32(s.next()), Offset: s.next() << 12, Range: span()}
		return say(vfiouser.DMAMap, m.Append(nil), some()...)
	case 2:
		u := vfiouser.Unmap{Flags: uint32(s.next() & 2), Range: span()}
		return say(vfiouser.DMAUnmap, u.Append(nil))
	case 3:
		q := vfiouser.IRQSet{Flags: uint32(s.next()), Index: uint32(s.next() % 6), Start: uint32(s.next() % 8), Count: uint32(s.next() % 8)}
		return say(vfiouser.SetIRQs, q.Append(nil), some()...)
	case 4:
		a := vfiouser.Access{Offset: s.next() << 2, Region: uint32(s.next() % 10), Count: uint32(s.next() & 15)}
		return say(vfiouser.RegionWrite, append(a.Append(nil), make([]byte, a.Count)...))
	case 5:
		a := vfiouser.Access{Offset: s.next() << 2, Region: uint32(s.next() % 10), Count: uint32(s.next())}
		return say(vfiouser.RegionRead, a.Append(nil))
	case 6:
		return say(vfiouser.Reset, nil)
	default:
		return say(vfiouser.Command(s.next()), binary.LittleEndian.AppendUint64(make([]byte, s.next()), s.next()), some()...)
	}
}

// FuzzVfioConversation holds whole conversations with a PCI function, whatever a client may say in
// whatever order, with descriptors of every kind: it stays within its budget of memory, and nothing
// that was mapped or passed stays when the client has left.
func FuzzVfioConversation(f *testing.F) {
	f.Add([]byte{0, 3, 0, 0, 20, 0, 1, 0, 3, 36, 2, 0, 4, 2, 3, 0, 2, 2, 0, 30, 0, 6, 1})
	f.Add([]byte{0, 3, 1, 1, 40, 1, 1, 0, 0, 3, 2, 8, 45, 1, 1, 0, 2, 2, 0, 0, 0, 5, 0, 7, 64, 0, 4, 18, 7, 4, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fds := []int{memfd(t, 1<<20, 0), memfd(t, 1<<45, 0), newEventFD(t), newEventFD(t), newEventFD(t)}
		budget := guestmem.NewBudget("fuzz", guestmem.Limit{Bytes: 1 << 44, Maps: 8})
		opt := quiet()
		opt.Memory = budget
		v := NewVfioUser("fuzz", testCID, opt)
		win, err := ivshmem.NewWindow(vfioTestFunction, abi.FunctionVF)
		if err != nil {
			t.Fatal(err)
		}
		g := v.newGuest(vfioTestFunction, win, nil)
		if g.control, err = win.Control("fuzz"); err != nil {
			t.Fatal(err)
		}
		v.functions[vfioTestFunction] = g
		fn, err := newVfioFunction(vfioTestFunction, win, vfioTestLook, g)
		if err != nil {
			t.Fatal(err)
		}
		near, far, err := sockettest.New()
		if err != nil {
			t.Fatal(err)
		}
		ended, drained := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = vfiouser.Serve(far, fn)
			_ = far.Close()
		}()
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, near)
		}()
		hello := (&vfiouser.Greeting{}).Append(nil)
		h := vfiouser.Header{Command: vfiouser.Version, Size: uint32(vfiouser.HeaderSize + len(hello))}
		err = fdpass.WriteAll(near, append(h.Append(nil), hello...))
		for s := vfioScript(b[:min(len(b), 300)]); len(s) > 0 && err == nil; {
			err = s.play(near, fds)
			win.Interrupt(int(s.next() % ivshmem.Vectors))
			if u := budget.Usage(); u.Bytes > 1<<44 || u.Maps > 8 {
				t.Fatalf("%+v is mapped", u)
			}
		}
		_ = near.CloseWrite()
		<-ended
		<-drained
		_ = near.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		if u := budget.Usage(); u.Maps != 0 || u.Bytes != 0 || len(g.dma.files) != 0 || len(g.dma.ranges) != 0 {
			t.Errorf("%+v is still mapped, of %d files", u, len(g.dma.files))
		}
		g.control.Close()
		if err := win.Close(); err != nil {
			t.Error(err)
		}
		for _, fd := range fds {
			if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				t.Errorf("descriptor %d of ours: %d, %v", fd, n, err)
			}
		}
	})
}
