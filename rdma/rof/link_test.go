package rof

import (
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestLinkPatience: a link waits a limited time for its connection. If there is none, it tries
// again after a pause that grows up to a limit. Meanwhile datagrams are lost.
func TestLinkPatience(t *testing.T) {
	l := newLines(t)
	k := l.handle(1)
	pauses := []vtime.Time{1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9}
	for i, pause := range pauses {
		before := l.lost()
		l.post(k, 1, verbs.Taken)
		k.Want(l.now)
		if l.e.NextLink() != k || l.e.NextLink() != nil {
			t.Fatalf("attempt %d: it is not wanted, or twice", i)
		}
		l.until(l.now + LinkPatience - 1)
		l.post(k, 1, verbs.Taken)
		if l.lost() != before || l.Held() != 2 {
			t.Fatalf("attempt %d: given up early", i)
		}
		l.until(l.now + 1)
		if l.lost() != before+2 || l.Held() != 0 {
			t.Fatalf("attempt %d: %d lost, %d held", i, l.lost()-before, l.Held())
		}
		l.post(k, 1, verbs.Lost)
		l.until(l.now + pause - 1)
		l.post(k, 1, verbs.Lost)
		if l.e.NextLink() != nil {
			t.Fatalf("attempt %d: it is wanted before the pause of %d ns is over", i, pause)
		}
		l.until(l.now + 1)
	}
	if !l.idle(k) {
		t.Fatal("it is not wanted any more")
	}
	k.Open(l.now, &pipe{segment: 1000}, [16]byte{})
	k.Refused(l.now) // too late
	l.post(k, 1, verbs.Taken)
	k.Disconnected(l.now)
	if !l.idle(k) {
		t.Fatal("after a connection: not wanted")
	}
	k.Refused(l.now)
	l.until(l.now + pauses[0] - 1)
	if l.idle(k) {
		t.Error("after a connection: the pause is shorter")
	}
	l.until(l.now + 1)
	if !l.idle(k) {
		t.Error("after a connection: the pause is longer")
	}
}

// TestNextLink: links get their connections in the order in which they asked for them, unless they
// no longer want one.
func TestNextLink(t *testing.T) {
	l := newLines(t)
	var all []*Link
	for i := range 4 {
		k := l.handle(i)
		k.Want(l.now)
		all = append(all, k)
	}
	all[1].Refused(l.now)
	for _, want := range []*Link{all[0], all[2], all[3], nil} {
		if got := l.e.NextLink(); got != want {
			t.Errorf("%p, want %p", got, want)
		}
	}
	k := l.handle(9)
	k.Want(l.now)
	l.objects.Close(l.now)
	if l.e.NextLink() != nil {
		t.Error("a function that has ended wants a connection")
	}
}

// TestLinkWithoutHandles: a link without handles stays for a while, with its connection, and longer
// if another handle uses it meanwhile.
func TestLinkWithoutHandles(t *testing.T) {
	l := newLines(t)
	k, c := l.open(1)
	l.handle(1)
	k.Leave(l.now)
	l.until(l.now + 2*linkIdleTime)
	if c.closed != 0 || k.Handles() != 1 {
		t.Fatalf("closed %d times with %d handles", c.closed, k.Handles())
	}
	k.Leave(l.now)
	l.until(l.now + linkIdleTime - 1)
	if l.handle(1) != k || c.closed != 0 {
		t.Fatal("gone early")
	}
	if at := l.shared.Timers.Deadline(); at != vtime.Never {
		t.Errorf("something waits until %d, though the link has a handle", at)
	}
	l.until(l.now + 2*linkIdleTime)
	if c.closed != 0 || !k.Connected() {
		t.Fatal("gone with a handle")
	}
	k.Leave(l.now)
	l.until(l.now + linkIdleTime)
	if c.closed != 1 || k.Connected() || l.Len() != 0 {
		t.Errorf("closed %d times, %d links", c.closed, l.Len())
	}

	// One that waits for its connection does so first.
	k = l.handle(2)
	k.Want(l.now)
	k.Leave(l.now)
	c = &pipe{segment: 1000}
	l.connect(k, c)
	l.until(l.now + linkIdleTime - 1)
	if c.closed != 0 || l.Len() != 1 {
		t.Fatal("gone early")
	}
	l.until(l.now + 1)
	if c.closed != 1 || l.Len() != 0 {
		t.Errorf("closed %d times, %d links", c.closed, l.Len())
	}

	// A second handle of a link that had none does not end its pause.
	k = l.handle(3)
	k.Want(l.now)
	k.Refused(l.now)
	l.handle(3)
	l.until(l.now + linkPauseMin)
	l.e.NextLink()
	if !l.idle(k) {
		t.Error("the pause does not end")
	}

	// Nor does the first that comes back.
	k = l.handle(4)
	k.Want(l.now)
	k.Refused(l.now)
	k.Leave(l.now)
	l.handle(4)
	l.until(l.now + linkIdleTime)
	if !l.idle(k) || l.Find(keyOf(address(4))) != k {
		t.Error("the pause does not end for the handle that came back")
	}

	// What waits for its connection without a handle does so no longer.
	k = l.handle(5)
	k.Want(l.now)
	k.Leave(l.now)
	l.until(l.now + LinkPatience)
	if k.state != linkRefused {
		t.Errorf("state %d", k.state)
	}
}

// TestFlowLabel: a link has the label of its first handle, until it has neither a handle nor a
// connection.
func TestFlowLabel(t *testing.T) {
	l := newLines(t)
	handle := func(label uint32) *Link {
		a := address(1)
		a.FlowLabel = label
		return l.To(a, true).(*Link)
	}
	k := handle(5)
	handle(6)
	if k.FlowLabel() != 5 || k.Function() != 3 {
		t.Errorf("label %d, function %d", k.FlowLabel(), k.Function())
	}
	k.Leave(l.now)
	k.Leave(l.now)
	if handle(7); k.FlowLabel() != 7 {
		t.Errorf("label %d, without a connection", k.FlowLabel())
	}
	k.Want(l.now)
	l.connect(k, &pipe{segment: 1000})
	k.Leave(l.now)
	if handle(8); k.FlowLabel() != 7 || k.Handles() != 1 {
		t.Errorf("label %d, with a connection", k.FlowLabel())
	}
}
