package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestManyLinksWithoutHandles: a function keeps a limited number of links without handles; the
// limit grows with its handles.
func TestManyLinksWithoutHandles(t *testing.T) {
	l := newLines(t)
	const most = 64 + testLimit
	for i := range 2 * most {
		l.handle(i).Leave(l.now)
		if n := l.Len(); n != min(i+1, most) {
			t.Fatalf("%d links of %d", n, i+1)
		}
	}
	l = newLines(t)
	l.objects.SetGID(0, [16]byte{0: 0xfd, 15: 1})
	pd, _ := l.objects.AllocPD()
	for i := range 3 {
		if _, st := l.objects.CreateAH(l.now, &abi.CreateAH{PDN: pd, DGID: address(i).GID}); st != abi.StatusOK {
			t.Fatal(st)
		}
	}
	for i := range 2 * most {
		l.handle(1000 + i).Leave(l.now)
		if n := l.Len(); n != min(3+i+1, most+6) {
			t.Fatalf("%d links with 3 handles", n)
		}
	}
	k, c := l.open(5000)
	l.handle(5000)
	k.Leave(l.now)
	p, opened := l.Accept(keyOf(address(5001)), 7), newPipe(1000)
	p.Open(l.now, opened, [16]byte{})
	l.handle(5001).Leave(l.now)
	if c.closed() != 0 || opened.closed() != 0 {
		t.Error("a link ends that has a handle still, or is the peer's to close")
	}
}

// TestLinksOpenedByOthersAreLimited: the number of links that one function may open to another is limited, and so
// is the total. An existing link of the function's own handles is used if it has no connection.
func TestLinksOpenedByOthersAreLimited(t *testing.T) {
	l := newLines(t)
	accept := func(n int, from uint32) *Link { return l.Accept(keyOf(address(n)), from) }
	var first *Link
	for i := range passivePerFunction {
		if k := accept(i, 7); k == nil || !k.Passive() {
			t.Fatalf("link %d is not accepted", i)
		} else if i == 0 {
			first = k
		}
	}
	if accept(50, 7) != nil {
		t.Error("one function has more")
	}
	if accept(51, 8) == nil || accept(52, 8) == nil || accept(53, 9) != nil {
		t.Errorf("%d links are passive, of %d", len(l.passive), testLimit)
	}
	first.Refused(l.now) // the peer went
	if l.Find(keyOf(address(0))) != nil || accept(54, 7) == nil {
		t.Error("a link that is gone counts")
	}

	l = newLines(t)
	idle, wanted, refused := l.handle(0), l.handle(1), l.handle(2)
	open, _ := l.open(3)
	wanted.Want(l.now)
	refused.Want(l.now)
	refused.Refused(l.now)
	for i, k := range []*Link{idle, wanted, refused, open} {
		got := accept(i, uint32(10+i))
		if used := got == k; used != (k == idle || k == refused) || l.Find(keyOf(address(i))) != k {
			t.Errorf("link %d: it is used for the connection: %t", i, used)
		}
	}
	if again := accept(1, 20); again == wanted || l.Len() != 4 || len(l.passive) != 5 {
		t.Errorf("%d links, %d passive", l.Len(), len(l.passive))
	}
	l.objects.Close(l.now)
	if accept(60, 30) != nil {
		t.Error("a function that has ended accepts a link")
	}
}

// TestOnlyThePeerClosesALinkItOpened: a link that the peer opened is closed by the peer, also after handles came and
// went. Then it is removed, unless it has handles.
func TestOnlyThePeerClosesALinkItOpened(t *testing.T) {
	for _, handles := range []int{0, 1} {
		l := newLines(t)
		k, c := l.Accept(keyOf(address(1)), 7), newPipe(1000)
		k.Open(l.now, c, [16]byte{})
		if l.handle(1) != k {
			t.Fatal("the handle has another link")
		}
		k.Leave(l.now)
		l.until(l.now + 2*linkIdleTime)
		if c.closed() != 0 || !k.Owns(c) || k.Owns(&pipe{}) {
			t.Fatal("the link has not its connection any more")
		}
		for range handles {
			l.handle(1)
		}
		l.post(k, 4, verbs.Taken)
		k.sent(l.now, 1, true)
		l.event(k, falcon.Event{Kind: falcon.EvClosed})
		if c.closed() != 0 || k.Connected() || k.Passive() || len(l.passive) != 0 || l.lost() != 3 || l.Len() != handles {
			t.Errorf("%d handles: closed %d times, %d passive, %d lost, %d links", handles, c.closed(), len(l.passive), l.lost(),
				l.Len())
		}
		if k.Disconnected(l.now); c.closed() != 0 || k.Owns(c) {
			t.Error("what has ended is closed, or there still")
		}
		if handles > 0 && !l.idle(k) {
			t.Error("its handle wants no other connection")
		}
	}
}

// TestRefusedPassiveLink: when no connection comes a passive link with handles goes on as theirs.
func TestRefusedPassiveLink(t *testing.T) {
	l := newLines(t)
	k := l.handle(1)
	l.post(k, 1, verbs.Taken)
	k.Refused(l.now)
	if l.Accept(keyOf(address(1)), 7) != k {
		t.Fatal("another link")
	}
	k.Refused(l.now)
	if l.Find(keyOf(address(1))) != k || k.state != linkRefused {
		t.Error("the handle's link is forgotten")
	}
	k.Leave(l.now)
	l.until(l.now + linkPauseMax)
	if l.Find(keyOf(address(1))) != k || !k.Passive() || k.state != linkIdle {
		t.Error("the peer's link is forgotten when the handle has gone")
	}
	// One beside the handle's own is forgotten alone.
	open, _ := l.open(2)
	beside := l.Accept(keyOf(address(2)), 8)
	beside.Refused(l.now)
	if l.Find(keyOf(address(2))) != open || len(l.passive) != 1 {
		t.Errorf("%d passive", len(l.passive))
	}
}

// TestLinksEndWithTheirFunctionInOrder: links end with their function, each once, in the order they were made.
func TestLinksEndWithTheirFunctionInOrder(t *testing.T) {
	l := newLines(t)
	var order []int
	want := []int{}
	for i := range 20 {
		var k *Link
		if i%4 == 3 { // beside one that is open
			k = l.Accept(keyOf(address(i-1)), uint32(i))
		} else {
			k = l.handle(i)
			k.Want(l.now)
			l.e.NextLink()
		}
		k.Open(l.now, &closing{newPipe(1000), func() { order = append(order, i) }}, [16]byte{})
		want = append(want, i)
	}
	l.Close(l.now)
	if !slices.Equal(order, want) || l.Len() != 0 || len(l.passive) != 0 {
		t.Errorf("closed in the order %v, %d links, %d passive", order, l.Len(), len(l.passive))
	}
}

// closing is a connection that says when it is closed.
type closing struct {
	*pipe
	call func()
}

func (c *closing) Close(vtime.Time) { c.call() }

// TestAnUnansweredLinkTriesAgainAfterAPause: a link waits a limited time for its connection. If there is none, it tries
// again after a pause that grows up to a limit. Meanwhile datagrams are lost.
func TestAnUnansweredLinkTriesAgainAfterAPause(t *testing.T) {
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
	k.Open(l.now, newPipe(1000), [16]byte{})
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

// TestLinksConnectInTheOrderOfAsking: links get their connections in the order in which they asked
// for them, unless they no longer want one.
func TestLinksConnectInTheOrderOfAsking(t *testing.T) {
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
	if c.closed() != 0 || k.Handles() != 1 {
		t.Fatalf("closed %d times with %d handles", c.closed(), k.Handles())
	}
	k.Leave(l.now)
	l.until(l.now + linkIdleTime - 1)
	if l.handle(1) != k || c.closed() != 0 {
		t.Fatal("gone early")
	}
	if at := l.shared.Timers.Deadline(); at != vtime.Never {
		t.Errorf("something waits until %d, though the link has a handle", at)
	}
	l.until(l.now + 2*linkIdleTime)
	if c.closed() != 0 || !k.Connected() {
		t.Fatal("gone with a handle")
	}
	k.Leave(l.now)
	l.until(l.now + linkIdleTime)
	if c.closed() != 1 || k.Connected() || l.Len() != 0 {
		t.Errorf("closed %d times, %d links", c.closed(), l.Len())
	}

	// One that waits for its connection does so first.
	k = l.handle(2)
	k.Want(l.now)
	k.Leave(l.now)
	c = newPipe(1000)
	l.connect(k, c)
	l.until(l.now + linkIdleTime - 1)
	if c.closed() != 0 || l.Len() != 1 {
		t.Fatal("gone early")
	}
	l.until(l.now + 1)
	if c.closed() != 1 || l.Len() != 0 {
		t.Errorf("closed %d times, %d links", c.closed(), l.Len())
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

// TestLinkKeepsTheLabelOfItsFirstHandle: a link has the label of its first handle, until it has
// neither a handle nor a connection.
func TestLinkKeepsTheLabelOfItsFirstHandle(t *testing.T) {
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
	l.connect(k, newPipe(1000))
	k.Leave(l.now)
	if handle(8); k.FlowLabel() != 7 || k.Handles() != 1 {
		t.Errorf("label %d, with a connection", k.FlowLabel())
	}
}
