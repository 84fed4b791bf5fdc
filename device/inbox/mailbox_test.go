package inbox

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// reader is an owner with one mailbox, which records the messages that it got.
type reader struct {
	*owner
	*Mailbox[int]
	got []int
}

func newReader(most int) *reader {
	r := &reader{owner: newOwner()}
	r.Mailbox = NewMailbox(&r.box, most, func(_ vtime.Time, m *int) { r.got = append(r.got, *m) })
	return r
}

// TestMessagesComeInOrderAndOnce checks that messages come in the order in which they were sent and
// once, also those sent while others are handled, and that an owner has the mailbox in its box once
// for all messages that wait.
func TestMessagesComeInOrderAndOnce(t *testing.T) {
	o := newOwner()
	var got []int
	var m *Mailbox[int]
	m = NewMailbox(&o.box, 0, func(_ vtime.Time, n *int) {
		if got = append(got, *n); *n == 3 {
			m.Send([]int{6})
		}
	})
	if m.Send(nil); !o.box.Empty() {
		t.Error("nothing was posted")
	}
	list := []int{1, 2}
	m.Send(list)
	list[0] = 99 // the sender may reuse the list
	m.Put(3)
	m.Send([]int{4, 5})
	if n := len(o.box.ready); n != 1 {
		t.Errorf("it is in the box %d times", n)
	}
	for range 3 {
		o.turn(1)
	}
	if !slices.Equal(got, []int{1, 2, 3, 4, 5, 6}) || !o.box.Empty() {
		t.Error(got)
	}
}

// TestASenderWaitsWhileAMailboxIsFull checks that Put on a full mailbox waits until the owner has
// taken the messages, and that no message is lost or overtaken.
func TestASenderWaitsWhileAMailboxIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		r := newReader(most)
		for i := range most {
			if !r.Put(i) {
				t.Fatal("closed")
			}
		}
		put := false
		go func() { put = r.Put(most) }()
		if synctest.Wait(); put {
			t.Error("put into a full mailbox")
		}
		r.turn(1)
		if synctest.Wait(); !put || len(r.got) != most {
			t.Errorf("put when there is room: %v, %d messages", put, len(r.got))
		}
		if r.turn(2); !slices.Equal(r.got, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Error(r.got)
		}
	})
}

// TestAClosedMailboxTakesNothing checks that a mailbox that is closed, or whose owner has stopped,
// refuses messages and releases a sender that waits. What was put before is still handled.
func TestAClosedMailboxTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader(1)
		r.Put(1)
		refused := false
		go func() { refused = !r.Put(2) }()
		synctest.Wait()
		r.Close()
		if synctest.Wait(); !refused || r.Put(3) {
			t.Error("a closed mailbox took a message")
		}
		if r.turn(1); !slices.Equal(r.got, []int{1}) {
			t.Error(r.got)
		}
	})
	r := newReader(0)
	r.box.Stop()
	if r.Put(1) || r.Put(2) {
		t.Error("an owner that has stopped takes messages")
	}
	if r.Send([]int{3}); len(r.waiting) > 1 {
		t.Errorf("%d messages wait for an owner that has stopped", len(r.waiting))
	}
}

// TestMergedMessagesTakeNoRoom checks that a message that was merged into an earlier one comes with
// it, and that the order of the others is kept.
func TestMergedMessagesTakeNoRoom(t *testing.T) {
	r := newReader(4)
	r.Merge = func(waiting []int) bool { // equal ones
		last := len(waiting) - 1
		return slices.Contains(waiting[:last], waiting[last])
	}
	for _, m := range []int{1, 2, 1, 2, 2, 3, 1} {
		r.Put(m)
	}
	if r.turn(1); !slices.Equal(r.got, []int{1, 2, 3}) {
		t.Error(r.got)
	}
}

// TestABusyMailboxNeedsNoMemory checks that passing messages allocates nothing.
func TestABusyMailboxNeedsNoMemory(t *testing.T) {
	o, sum := newOwner(), 0
	m := NewMailbox(&o.box, 16, func(_ vtime.Time, n *int) { sum += *n })
	if n := allocs.PerRun(100, func() {
		m.Put(1)
		m.Put(2)
		o.turn(1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
