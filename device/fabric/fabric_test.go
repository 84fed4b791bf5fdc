package fabric

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/allocs"
)

const mtu = 1500

func frame(dst, src byte, n int) []byte {
	f := make([]byte, n)
	f[0], f[5] = 2, dst
	f[6], f[11] = 2, src
	if dst == 0xff {
		copy(f, bytes.Repeat([]byte{0xff}, 6))
	}
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f
}

func open(t testing.TB, s *Switch, name string) tap.Uplink {
	t.Helper()
	p, err := s.Port(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return p
}

func readable(t testing.TB, p tap.Uplink) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.FD()), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLIN != 0
}

// drain reads everything, a few frames at a time, and checks that the FD is readable exactly while
// frames wait.
func drain(t testing.TB, p tap.Uplink) (frames [][]byte) {
	t.Helper()
	for {
		bufs, lens := [][]byte{make([]byte, mtu+18), make([]byte, mtu+18)}, make([]tap.Received, 2)
		ready := readable(t, p)
		n, err := p.Read(bufs, lens)
		if err != nil {
			t.Fatal(err)
		}
		if ready != (n > 0) {
			t.Fatalf("FD readable %v, %d frames read", ready, n)
		}
		if n == 0 {
			return frames
		}
		for i := range n {
			frames = append(frames, bufs[i][:lens[i].Len])
		}
	}
}

func write(t testing.TB, p tap.Uplink, frames ...[]byte) {
	t.Helper()
	if n, err := p.Write(frames, false); n != len(frames) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(frames), err)
	}
}

func TestFloodsThenLearns(t *testing.T) {
	s := New(mtu)
	a, b, c := open(t, s, "a"), open(t, s, "b"), open(t, s, "c")
	first := frame(2, 1, 60)
	write(t, a, first)
	for _, p := range []tap.Uplink{b, c} {
		if got := drain(t, p); len(got) != 1 || !bytes.Equal(got[0], first) {
			t.Fatalf("%s got %d frames", p.Name(), len(got))
		}
	}
	write(t, b, frame(1, 2, 60))
	write(t, a, frame(2, 1, 1514), frame(2, 1, 1518), frame(0xff, 1, 60))
	if n := len(drain(t, a)); n != 1 {
		t.Errorf("a got %d", n)
	}
	if n := len(drain(t, b)); n != 3 {
		t.Errorf("b got %d", n)
	}
	if n := len(drain(t, c)); n != 1 {
		t.Errorf("c got %d: only the broadcast is for it", n)
	}
	write(t, a, frame(1, 9, 60)) // to an address on the same port
	if len(drain(t, a))+len(drain(t, b))+len(drain(t, c)) != 0 {
		t.Error("a frame went back or further than its port")
	}
}

func TestDropsAreCounted(t *testing.T) {
	s := New(mtu)
	a, b := open(t, s, "a"), open(t, s, "b")
	write(t, a, make([]byte, 13), make([]byte, mtu+19))
	if st := a.Stats(); st.TxDropped != 2 || st.TxFrames != 0 {
		t.Errorf("%+v", st)
	}
	write(t, a, frame(2, 1, 14), frame(2, 1, mtu+18)) // the shortest and the longest
	if st := a.Stats(); st.TxDropped != 2 || st.TxFrames != 2 || len(drain(t, b)) != 2 {
		t.Errorf("%+v", st)
	}
	for range queueLen + 5 {
		write(t, a, frame(2, 1, 60))
	}
	if st := b.Stats(); st.RxDropped != 5 {
		t.Errorf("%+v", st)
	}
	if n, err := b.Read([][]byte{make([]byte, 10)}, make([]tap.Received, 1)); n != 0 || err != nil {
		t.Errorf("frames read into a short buffer: %d, %v", n, err)
	}
	if readable(t, b) || b.Stats().RxDropped != queueLen+5 {
		t.Errorf("after dropping everything: readable %v, %+v", readable(t, b), b.Stats())
	}
}

func TestTrafficIsCounted(t *testing.T) {
	s := New(mtu)
	a, b := open(t, s, "a"), open(t, s, "b")
	write(t, a, frame(2, 1, 60), frame(2, 1, 100))
	drain(t, b)
	if st := a.Stats(); st.TxFrames != 2 || st.TxBytes != 160 || st.RxFrames != 0 || st.RxBytes != 0 {
		t.Errorf("sender: %+v", st)
	}
	if st := b.Stats(); st.RxFrames != 2 || st.RxBytes != 160 || st.TxFrames != 0 || st.TxBytes != 0 {
		t.Errorf("receiver: %+v", st)
	}
}

func TestMACTableIsBounded(t *testing.T) {
	s := New(mtu)
	a := open(t, s, "a")
	for i := range 3 * maxMACs {
		f := frame(2, 1, 60)
		f[7], f[8] = byte(i), byte(i>>8)
		write(t, a, f)
	}
	if len(s.macs) != maxMACs {
		t.Errorf("%d addresses learnt", len(s.macs))
	}
}

func TestAClosedPortFailsAndFreesItsName(t *testing.T) {
	s := New(mtu)
	a, b := open(t, s, "a"), open(t, s, "b")
	if _, err := s.Port("a"); err == nil {
		t.Error("a name was given twice")
	}
	write(t, b, frame(1, 2, 60))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, a, frame(2, 1, 60)) // to the address learnt on the closed port
	for _, f := range []func() error{
		b.Close,
		func() error { _, err := b.Read(nil, nil); return err },
		func() error { _, err := b.Write(nil, false); return err },
	} {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	open(t, s, "b")
}

func TestNoAllocations(t *testing.T) {
	s := New(mtu)
	a, b := open(t, s, "a"), open(t, s, "b")
	frames, bufs, lens := [][]byte{frame(2, 1, 1514)}, [][]byte{make([]byte, mtu+18)}, make([]tap.Received, 1)
	for range queueLen { // every slot has its memory
		write(t, a, frames...)
	}
	drain(t, b)
	if n := allocs.PerRun(100, func() {
		write(t, a, frames...)
		if n, err := b.Read(bufs, lens); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestAddressesAreForgottenWithTheirPort: addresses learnt on a port are forgotten with it; those of other ports are not.
func TestAddressesAreForgottenWithTheirPort(t *testing.T) {
	s := New(mtu)
	a, b, c := open(t, s, "a"), open(t, s, "b"), open(t, s, "c")
	write(t, b, frame(1, 2, 60))
	write(t, c, frame(1, 3, 60))
	drain(t, a)
	drain(t, c)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	d := open(t, s, "d")
	write(t, a, frame(2, 1, 60))
	if len(drain(t, c)) != 1 || len(drain(t, d)) != 1 {
		t.Error("a frame for an address that was learnt on the closed port is not for all")
	}
	write(t, a, frame(3, 1, 60))
	if len(drain(t, c)) != 1 || len(drain(t, d)) != 0 {
		t.Error("what was learnt on another port is forgotten")
	}
	write(t, c, frame(0xff, 3, 60))
	if len(drain(t, a)) != 1 || len(drain(t, d)) != 1 {
		t.Error("another port than the closed one gets nothing any more")
	}
}
