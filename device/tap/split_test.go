package tap

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

// wholeUplink is an uplink without queues.
type wholeUplink struct {
	Uplink
	written [][]byte
	waiting [][]byte
	closed  int
}

func (p *wholeUplink) FD() int { return 7 }

func (p *wholeUplink) Read(bufs [][]byte, got []Received) (n int, err error) {
	for ; n < len(bufs) && len(p.waiting) > 0; n++ {
		got[n] = Received{Len: copy(bufs[n], p.waiting[0])}
		p.waiting = p.waiting[1:]
	}
	return n, nil
}

func (p *wholeUplink) Write(frames [][]byte, _ bool) (int, error) {
	for _, f := range frames {
		p.written = append(p.written, bytes.Clone(f))
	}
	return len(frames), nil
}

func (p *wholeUplink) Stats() Stats { return Stats{TxFrames: uint64(len(p.written))} }

func (p *wholeUplink) Close() error { p.closed++; return nil }

// TestSplitWithoutQueues: if a port cannot be split, the first owner reads, each owner writes, and
// the last one closes it.
func TestSplitWithoutQueues(t *testing.T) {
	whole := &wholeUplink{waiting: [][]byte{{1}, {2}}}
	parts, err := Split(whole, 3)
	if err != nil || len(parts) != 3 {
		t.Fatal(parts, err)
	}
	var owners sync.WaitGroup
	for _, p := range parts {
		owners.Go(func() {
			for range 100 {
				if n, err := p.Write([][]byte{{9}, {9}}, false); n != 2 || err != nil {
					t.Error(n, err)
				}
			}
		})
	}
	owners.Wait()
	bufs, got := [][]byte{make([]byte, 10), make([]byte, 10)}, make([]Received, 2)
	for i, want := range []int{2, 0, 0} {
		if n, err := parts[i].Read(bufs, got); n != want || err != nil {
			t.Errorf("part %d read %d, want %d (%v)", i, n, want, err)
		}
		if fd := parts[i].FD(); (fd >= 0) != (i == 0) {
			t.Errorf("part %d waits for %d", i, fd)
		}
		if Reads(parts[i]) != (i == 0) {
			t.Errorf("part %d: reads %t", i, Reads(parts[i]))
		}
	}
	if s := parts[0].Stats(); s.TxFrames != 600 || parts[1].Stats() != (Stats{}) {
		t.Errorf("%+v", s)
	}
	for i, p := range parts {
		if whole.closed != 0 {
			t.Fatalf("closed before owner %d had done", i)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if whole.closed != 1 {
		t.Errorf("closed %d times", whole.closed)
	}
	if err := Steer(whole, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// TestSplitByQueues: a TAP with a queue for each owner is split by queues, and disappears with its
// last part. A TAP with fewer queues is read by the first owner only.
func TestSplitByQueues(t *testing.T) {
	for _, tc := range []struct {
		queues, owners int
		of             []int // queues of each part; nil: it is not split
	}{
		{4, 4, []int{1, 1, 1, 1}},
		{4, 3, []int{2, 1, 1}},
		{5, 2, []int{3, 2}},
		{3, 4, nil},
		{1, 2, nil},
	} {
		withTAPs(t, func() {
			whole, err := Open(Config{Name: "up1", Queues: tc.queues})
			if err != nil {
				t.Fatal(err)
			}
			parts, err := Split(whole, tc.owners)
			if err != nil || len(parts) != tc.owners {
				t.Fatal(len(parts), err)
			}
			var of []int
			for i, p := range parts {
				if Reads(p) != (tc.of != nil || i == 0) {
					t.Errorf("%+v: part %d reads %t", tc, i, Reads(p))
				}
				if own, ok := p.(*uplink); ok && len(parts) > 1 {
					of = append(of, len(own.dev.fds))
				}
			}
			if !slices.Equal(of, tc.of) {
				t.Errorf("%+v: queues %v", tc, of)
			}
			for i, p := range parts {
				if _, err := netlink.LinkByName("up1"); err != nil {
					t.Errorf("%+v: the device is gone before part %d: %v", tc, i, err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := netlink.LinkByName("up1"); err == nil {
				t.Errorf("%+v: the device is still there", tc)
			}
		})
	}
}
