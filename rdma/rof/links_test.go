package rof

import (
	"slices"
	"testing"

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
	p, opened := l.Accept(keyOf(address(5001)), 7), &pipe{segment: 1000}
	p.Open(l.now, opened, [16]byte{})
	l.handle(5001).Leave(l.now)
	if c.closed != 0 || opened.closed != 0 {
		t.Error("a link ends that has a handle still, or is the peer's to close")
	}
}

// TestAcceptedLinks: the number of links that one function may open to another is limited, and so
// is the total. An existing link of the function's own handles is used if it has no connection.
func TestAcceptedLinks(t *testing.T) {
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

// TestPassiveLink: a link that the peer opened is closed by the peer, also after handles came and
// went. Then it is removed, unless it has handles.
func TestPassiveLink(t *testing.T) {
	for _, handles := range []int{0, 1} {
		l := newLines(t)
		k, c := l.Accept(keyOf(address(1)), 7), &pipe{segment: 1000}
		k.Open(l.now, c, [16]byte{})
		if l.handle(1) != k {
			t.Fatal("the handle has another link")
		}
		k.Leave(l.now)
		l.until(l.now + 2*linkIdleTime)
		if c.closed != 0 || !k.Owns(c) || k.Owns(nil) || k.Owns(&pipe{}) {
			t.Fatal("the link has not its connection any more")
		}
		for range handles {
			l.handle(1)
		}
		l.post(k, 4, verbs.Taken)
		k.Sent(l.now, 1, true)
		k.Ended(l.now)
		if c.closed != 0 || k.Connected() || k.Passive() || len(l.passive) != 0 || l.lost() != 3 || l.Len() != handles {
			t.Errorf("%d handles: closed %d times, %d passive, %d lost, %d links", handles, c.closed, len(l.passive), l.lost(),
				l.Len())
		}
		if k.Disconnected(l.now); c.closed != 0 || k.Owns(nil) {
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

// TestLinksClose: links end with their function, each once, in the order they were made.
func TestLinksClose(t *testing.T) {
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
		k.Open(l.now, &closing{&pipe{segment: 1000}, func() { order = append(order, i) }}, [16]byte{})
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
