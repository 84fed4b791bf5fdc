package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestWithFalcon: only datagrams that falcon has are found by their number. One that waits is not,
// and neither is one that was given up, even if another has its slot by now.
func TestWithFalcon(t *testing.T) {
	head := ^uint32(0) - 2 // numbers wrap
	o := outgoing{held: make([]*datagram, LinkQueue), head: head, next: head + 5, tail: head + 9}
	for n := o.head; n != o.tail; n++ {
		*o.place(n) = &datagram{Datagram: transport.Datagram{Serial: n}}
	}
	for i := range uint32(3 * LinkQueue) {
		n := head - LinkQueue + i
		d, with := o.get(n), i >= LinkQueue && i < LinkQueue+5
		if (d != nil) != with || with && d.Serial != n {
			t.Errorf("number head%+d: found is %t, want %t", int32(n-head), d != nil, with)
		}
	}
	*o.place(head + 2) = nil
	if o.get(head+2) != nil {
		t.Error("one that is over is found")
	}
}

// TestLinkSegment: a datagram longer than the connection carries is lost, when it is sent, or when
// it has waited for the connection.
func TestLinkSegment(t *testing.T) {
	l := newLines(t)
	k, c := l.handle(1), &pipe{segment: 100}
	k.Want(l.now)
	for _, n := range []int{100, 101, 99, 4096} {
		if got := k.Send(l.now, write(new(sender), n)); got != verbs.Taken {
			t.Fatalf("%d bytes, that wait: %d", n, got)
		}
	}
	l.connect(k, c)
	if !slices.Equal(c.sent, []uint32{0, 2}) || l.lost() != 2 || l.Held() != 2 {
		t.Errorf("sent %d, %d lost, %d held", c.sent, l.lost(), l.Held())
	}
	a, b := k.Send(l.now, write(new(sender), 100)), k.Send(l.now, write(new(sender), 101))
	if a != verbs.Taken || b != verbs.Lost {
		t.Errorf("100 bytes: %d, 101 bytes: %d", a, b)
	}
	if !slices.Equal(c.sent, []uint32{0, 2, 4}) || l.lost() != 2 { // who sends counts that
		t.Errorf("sent %d, %d lost", c.sent, l.lost())
	}
}

// TestLinkQueue: datagrams wait while the connection has no credit, and leave their places in any
// order; a place is free again when it is the oldest.
func TestLinkQueue(t *testing.T) {
	l := newLines(t)
	k, c := l.open(1)
	l.post(k, 2, verbs.Taken)
	c.err = transport.ErrBlocked
	l.post(k, LinkQueue-2, verbs.Taken)
	from := l.post(k, 2, verbs.Full)
	if !slices.Equal(c.sent, []uint32{0, 1}) || l.Held() != LinkQueue || from.waits != k || len(k.blocked) != 1 {
		t.Fatalf("sent %d, %d held, %d wait", c.sent, l.Held(), len(k.blocked))
	}
	k.Sent(l.now, 2, true) // it was never sent
	if l.Held() != LinkQueue || from.resumed != 1 {
		t.Errorf("%d held, resumed %d times", l.Held(), from.resumed)
	}
	k.Sent(l.now, 1, true)
	if l.Held() != LinkQueue-1 {
		t.Errorf("%d held", l.Held())
	}
	l.post(k, 1, verbs.Full) // its place is not free before the one of 0
	k.Sent(l.now, 0, true)
	k.Sent(l.now, 0, true) // once is enough
	if l.Held() != LinkQueue-2 {
		t.Errorf("%d held", l.Held())
	}
	l.post(k, 2, verbs.Taken)
	l.post(k, 1, verbs.Full)
	c.err = nil
	k.Unblocked(l.now)
	if n := len(c.sent); n != LinkQueue+2 || c.sent[n-1] != LinkQueue+1 {
		t.Errorf("%d sent, the last is %d", n, c.sent[n-1])
	}
	for n := range uint32(LinkQueue + 2) {
		k.Sent(l.now, n, true)
	}
	if l.Held() != 0 || k.holding.On() != nil || l.lost() != 0 {
		t.Errorf("%d held, %d lost", l.Held(), l.lost())
	}
}

// TestStalledLink: a sender waits for room until the destination has been silent for LinkStall.
// Then everything held is lost, and so is what is sent until the destination is heard of again.
func TestStalledLink(t *testing.T) {
	l := newLines(t)
	k, c := l.open(1)
	begun := l.now
	l.post(k, LinkQueue, verbs.Taken)
	l.until(begun + LinkStall/2)
	from := l.post(k, 1, verbs.Full)
	l.until(begun + LinkStall - 1)
	if from.resumed != 0 || l.Held() != LinkQueue {
		t.Fatalf("resumed %d times, %d held, before the end", from.resumed, l.Held())
	}
	l.until(begun + LinkStall)
	if from.resumed != 1 || l.Held() != 0 || l.lost() != LinkQueue {
		t.Fatalf("resumed %d times, %d held, %d lost, at the end", from.resumed, l.Held(), l.lost())
	}
	l.post(k, 3, verbs.Lost)
	k.Sent(l.now, 5, false) // falcon gave up
	l.post(k, 1, verbs.Lost)
	k.Sent(l.now, 6, true)
	l.post(k, 1, verbs.Taken)
	if len(c.sent) != LinkQueue+1 || l.Held() != 1 {
		t.Errorf("%d sent, %d held", len(c.sent), l.Held())
	}

	// Long silence before the queue is full is no reason to give up at once what is new.
	k, _ = l.open(2)
	l.until(l.now + 5*LinkStall)
	begun = l.now
	l.post(k, LinkQueue, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(begun + LinkStall - 1)
	if from.resumed != 0 {
		t.Error("given up early")
	}
	k.Sent(l.now, 0, true) // heard of: the wait begins anew
	l.post(k, 1, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(l.now + LinkStall - 1)
	if from.resumed != 0 {
		t.Error("given up early, though it was heard of")
	}
	l.until(l.now + 1)
	if from.resumed != 1 {
		t.Error("not given up")
	}

	// A link without a connection is stalled for those that waited, until it has one.
	k = l.handle(3)
	l.post(k, LinkQueue, verbs.Taken)
	from = l.post(k, 1, verbs.Full)
	l.until(l.now + LinkStall)
	if from.resumed != 1 {
		t.Error("without a connection: not given up")
	}
	l.post(k, 1, verbs.Lost)
	l.connect(k, &pipe{segment: 1000})
	l.post(k, 1, verbs.Taken)
}

// TestFullLinks: when a function holds the maximum of datagrams, links without a connection give
// theirs up at once. If all links have one, the sender waits for the link that has been silent
// longest.
func TestFullLinks(t *testing.T) {
	l := newLines(t)
	var all []*Link
	for i := range FunctionQueue / LinkQueue {
		k := l.handle(i)
		if i < 2 {
			k.Want(l.now)
			l.connect(k, &pipe{segment: 1000})
		}
		l.until(l.now + 10)
		l.post(k, LinkQueue, verbs.Taken)
		all = append(all, k)
	}
	other, _ := l.open(100)
	all[0].Sent(l.now, 127, true) // heard of; the oldest is still held
	l.post(all[0], 1, verbs.Full)
	l.post(other, 1, verbs.Taken)
	silent := all[1]
	from := l.post(other, 1, verbs.Full)
	if from.waits != silent || l.lost() != 0 || l.Held() != FunctionQueue {
		t.Fatalf("waits for %p, want %p; %d lost, %d held", from.waits, silent, l.lost(), l.Held())
	}
	l.until(silent.progress + LinkStall)
	if from.resumed != 1 || l.lost() != LinkQueue || l.Held() != FunctionQueue-LinkQueue {
		t.Fatalf("resumed %d times, %d lost, %d held", from.resumed, l.lost(), l.Held())
	}
	l.post(other, LinkQueue-1, verbs.Taken)
	another, _ := l.open(101)
	l.post(another, 2, verbs.Taken) // the first of those without a connection makes room
	if all[2].head != all[2].tail || l.lost() != 2*LinkQueue || all[3].head == all[3].tail {
		t.Errorf("%d lost, %d held", l.lost(), l.Held())
	}
	l.post(all[2], 1, verbs.Taken) // what was given up had no connection: the next may have one
}
