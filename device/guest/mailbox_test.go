package guest

import (
	"testing"
	"testing/synctest"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestDoorbellsCoalesce checks that rings of one queue that meet are merged, and keep their order
// with everything else. (DEV-802)
func TestDoorbellsCoalesce(t *testing.T) {
	m := NewMailbox(func() bool { return true }, nil)
	bell := func(q, index uint32) {
		m.Put(Request{Kind: Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: q, Index: index}})
	}
	bell(1, 1)
	bell(2, 1)
	bell(1, 2)
	bell(2, 5)
	m.Put(Request{Kind: RegWrite})
	bell(1, 3)
	bell(1, 4)
	var got []uint32
	for _, it := range m.items {
		got = append(got, it.Doorbell.Queue<<8|it.Doorbell.Index)
	}
	want := []uint32{1<<8 | 2, 2<<8 | 5, 0, 1<<8 | 4}
	if len(got) != len(want) {
		t.Fatalf("%x, want %x", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%x, want %x", got, want)
		}
	}
}

// sq returns a doorbell of a send queue.
func sq(queue, index uint32) Request {
	return Request{Kind: Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: queue, Index: index}}
}

// TestWhatCoalesces checks that a doorbell replaces an older one of the same kind and queue that is
// not too far back, and no other.
func TestWhatCoalesces(t *testing.T) {
	with := func(change func(d *abi.Doorbell)) Request {
		r := sq(1, 9)
		change(&r.Doorbell)
		return r
	}
	dirty := sq(1, 9)
	dirty.Dirty = &[abi.DoorbellSize]byte{1}
	for _, c := range []struct {
		what    string
		between int // doorbells of other queues
		next    Request
		merges  bool
	}{
		{"the same", 0, sq(1, 9), true},
		{"as far back as one looks", coalesceWindow - 1, sq(1, 9), true},
		{"one further", coalesceWindow, sq(1, 9), false},
		{"another queue", 0, sq(2, 9), false},
		{"another kind", 0, with(func(d *abi.Doorbell) { d.Kind = abi.DoorbellAdmin }), false},
		{"other flags", 0, with(func(d *abi.Doorbell) { d.Flags = 1 }), false},
		{"to be judged", 0, dirty, false},
	} {
		m := NewMailbox(func() bool { return true }, nil)
		m.Put(sq(1, 1))
		for i := range c.between {
			m.Put(sq(uint32(100+i), 1))
		}
		if !m.Put(c.next) {
			t.Fatal("the mailbox is closed")
		}
		want := 1 + c.between
		if !c.merges {
			want++
		}
		if len(m.items) != want || (m.items[0].Doorbell.Index == 9) != c.merges {
			t.Errorf("%s: %d requests, want %d; the first says %d", c.what, len(m.items), want, m.items[0].Doorbell.Index)
		}
	}
}

// TestMailboxIsBounded checks that Put on a full mailbox waits until the shard has drained it, and
// that the shard is notified once for all waiting requests.
func TestMailboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		var got []uint64
		m := NewMailbox(func() bool { told++; return true }, func(_ falcon.Time, r *Request) { got = append(got, r.Value) })
		for i := range uint64(mailboxSize) {
			if !m.Put(Request{Kind: RegWrite, Value: i}) {
				t.Fatal("closed")
			}
		}
		put := false
		go func() { put = m.Put(Request{Kind: RegWrite, Value: mailboxSize}) }()
		if synctest.Wait(); put || told != 1 {
			t.Errorf("put into a full mailbox: %v, told %d times", put, told)
		}
		m.Drain(1)
		if synctest.Wait(); !put || told != 2 || len(got) != mailboxSize {
			t.Errorf("put when there is room: %v, told %d times of %d requests", put, told, len(got))
		}
		m.Drain(2)
		for i, v := range got {
			if v != uint64(i) {
				t.Fatalf("request %d in place of %d", v, i)
			}
		}
		if len(got) != mailboxSize+1 {
			t.Errorf("%d requests", len(got))
		}
	})
}

// TestClosedMailbox checks that a closed mailbox takes nothing, and that a waiting Put returns.
func TestClosedMailbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMailbox(func() bool { return true }, nil)
		for range mailboxSize {
			m.Put(Request{Kind: RegWrite})
		}
		gone := false
		go func() { gone = !m.Put(Request{Kind: RegWrite}) }()
		synctest.Wait()
		m.Close()
		if synctest.Wait(); !gone || m.Put(Request{Kind: RegWrite}) || len(m.items) != mailboxSize {
			t.Errorf("a closed mailbox took something: %d requests, the one that waited went: %v", len(m.items), gone)
		}
	})
	stopped := NewMailbox(func() bool { return false }, nil)
	if stopped.Put(Request{Kind: RegRead}) || stopped.Put(sq(1, 1)) || len(stopped.items) != 1 {
		t.Error("a shard that has stopped takes requests")
	}
}
