package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// sharedQueue is a shared receive queue of 4 entries with its driver's side.
type sharedQueue struct {
	*SRQ
	g     *guest
	posts *ring.Producer
}

// newSRQ makes a shared receive queue; what c leaves open is good.
func (g *guest) newSRQ(c abi.CreateSRQ) *sharedQueue {
	g.t.Helper()
	layout := ring.QueueLayout(2, 7)
	at := g.pages(1)
	if c.PDN == 0 {
		c.PDN = g.pdn
	}
	c.Log2Entries, c.Log2Stride, c.Levels, c.Pages = 2, 7, 1, g.run(at, 1)
	number, st := g.CreateSRQ(&c)
	g.good(st)
	return &sharedQueue{g.SRQ(number), g, ring.NewProducer(ring.Mem(g.mem(at, int(layout.Size()))), layout)}
}

// use makes c that of a queue pair that receives from the queue.
func (s *sharedQueue) use(c *abi.CreateQP) {
	c.SRQN, c.RQLog2Entries, c.RQLog2Stride, c.RQLevels, c.RQPages, c.MaxRecvSGE = s.number, 0, 0, 0, 0, 0
}

// receive posts n receives.
func (s *sharedQueue) receive(n int) {
	s.g.t.Helper()
	for range n {
		b := make([]byte, abi.RecvWQEHeader)
		err := s.posts.Push(b)
		if err == nil {
			_, _, err = s.posts.Publish()
		}
		if err != nil {
			s.g.t.Fatal(err)
		}
	}
	s.g.Objects.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSRQ, Queue: s.number, Index: s.posts.Next()})
}

// TestSharedQueuesHaveBounds: the limit of a shared queue is at most its entries, and its elements
// at most what the function may have.
func TestSharedQueuesHaveBounds(t *testing.T) {
	g := newGuest(t, Limits{SGEs: 3})
	list := g.run(g.pages(1), 1)
	for _, c := range []struct {
		name   string
		change func(c *abi.CreateSRQ)
		want   abi.Status
	}{
		{"all elements", func(c *abi.CreateSRQ) { c.MaxSGE = 3 }, abi.StatusOK},
		{"one too many", func(c *abi.CreateSRQ) { c.MaxSGE = 4 }, abi.StatusTooLarge},
		{"limit of all entries", func(c *abi.CreateSRQ) { c.Limit = 4 }, abi.StatusOK},
		{"limit above that", func(c *abi.CreateSRQ) { c.Limit = 5 }, abi.StatusInvalidArgument},
		{"privileged", func(c *abi.CreateSRQ) { c.Flags = abi.QPPrivileged }, abi.StatusOK},
		{"unknown flag", func(c *abi.CreateSRQ) { c.Flags = 0x80 }, abi.StatusInvalidArgument},
		{"unknown kind", func(c *abi.CreateSRQ) { c.Type = abi.SRQTypeXRC + 1 }, abi.StatusInvalidArgument},
		{"smallest stride", func(c *abi.CreateSRQ) { c.MaxSGE, c.Log2Stride = 1, 5 }, abi.StatusOK},
		{"smaller", func(c *abi.CreateSRQ) { c.MaxSGE, c.Log2Stride = 0, 4 }, abi.StatusInvalidArgument},
		{"a domain that it does not want", func(c *abi.CreateSRQ) { c.XRCDN = 1 }, abi.StatusInvalidArgument},
		{"a queue that it does not want", func(c *abi.CreateSRQ) { c.CQN = 1 }, abi.StatusInvalidArgument},
		{"no domain", func(c *abi.CreateSRQ) { c.PDN = 0x777 }, abi.StatusNotFound},
	} {
		x := abi.CreateSRQ{PDN: g.pdn, Log2Entries: 2, Log2Stride: 7, Levels: 1, Pages: list}
		c.change(&x)
		if _, st := g.CreateSRQ(&x); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
	domain, st := g.OpenXRCD()
	g.good(st)
	cq := g.newCQ(2)
	for _, c := range []struct {
		domain, cq uint32
		want       abi.Status
	}{{domain, cq.number, abi.StatusOK}, {domain, 0, abi.StatusNotFound}, {0, cq.number, abi.StatusNotFound}} {
		x := abi.CreateSRQ{PDN: g.pdn, Type: abi.SRQTypeXRC, XRCDN: c.domain, CQN: c.cq, Log2Entries: 2, Log2Stride: 7, Levels: 1, Pages: list}
		if _, st := g.CreateSRQ(&x); st != c.want {
			t.Errorf("XRC, domain %#x, queue %#x: %v, want %v", c.domain, c.cq, st, c.want)
		}
	}
}

// TestModifySRQChangesLimitAndAreaTogetherOrNeither: limit and area change one by one or together,
// and a limit that the area does not hold is refused without either. (DEV-921, DEV-922)
func TestModifySRQChangesLimitAndAreaTogetherOrNeither(t *testing.T) {
	g := newGuest(t, Limits{QPEntries: 8})
	s := g.newSRQ(abi.CreateSRQ{Limit: 4})
	list := g.run(g.pages(1), 1)
	for _, c := range []struct {
		name           string
		m              abi.ModifySRQ
		want           abi.Status
		limit, entries uint32
	}{
		{"nothing", abi.ModifySRQ{}, abi.StatusOK, 4, 4},
		{"a bit that there is not", abi.ModifySRQ{Mask: 1 << 30}, abi.StatusInvalidArgument, 4, 4},
		{"a smaller area than the limit", abi.ModifySRQ{Mask: abi.SRQAttrArea, Log2Entries: 1, Levels: 1, Pages: list}, abi.StatusInvalidArgument, 4, 4},
		{"with a limit that fits", abi.ModifySRQ{Mask: abi.SRQAttrArea | abi.SRQAttrLimit, Limit: 2, Log2Entries: 1, Levels: 1, Pages: list}, abi.StatusOK, 0, 2},
		{"a limit above it", abi.ModifySRQ{Mask: abi.SRQAttrLimit, Limit: 3}, abi.StatusInvalidArgument, 0, 2},
		{"a larger area", abi.ModifySRQ{Mask: abi.SRQAttrArea, Limit: 100, Log2Entries: 3, Levels: 1, Pages: list}, abi.StatusOK, 0, 8},
		{"larger than allowed", abi.ModifySRQ{Mask: abi.SRQAttrArea, Log2Entries: 4, Levels: 1, Pages: list}, abi.StatusTooLarge, 0, 8},
		{"no list", abi.ModifySRQ{Mask: abi.SRQAttrArea, Log2Entries: 2, Levels: 1, Pages: 1 << 50}, abi.StatusMemoryFault, 0, 8},
	} {
		c.m.SRQN = s.number
		_, st := g.ModifySRQ(&c.m)
		q, _ := g.QuerySRQ(s.number)
		if st != c.want || q.Limit != c.limit || q.Entries != c.entries {
			t.Errorf("%s: %v, limit %d of %d entries", c.name, st, q.Limit, q.Entries)
		}
	}
	if want := []event{{abi.EventSRQLimit, s.number, 0}}; len(g.events) != 1 || g.events[0] != want[0] {
		t.Errorf("events %+v, want %+v: a limit above what is posted", g.events, want)
	}
}

// TestASharedQueueInUseCannotBeDestroyed: a shared queue cannot be destroyed while queue pairs use
// it, or a message has taken a receive of it.
func TestASharedQueueInUseCannotBeDestroyed(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newSRQ(abi.CreateSRQ{})
	destroy := func(what string, want abi.Status) {
		t.Helper()
		if st := g.DestroySRQ(s.number); st != want {
			t.Errorf("%s: %v, want %v", what, st, want)
		}
	}
	q := g.newRC(s.use)
	destroy("a queue pair is made with it", abi.StatusBusy)
	s.receive(2)
	if q.recv.receiveFor(1) == nil || s.taken != 1 {
		t.Fatalf("%d receives are taken", s.taken)
	}
	g.good(g.DestroyQP(0, q.number))
	if s.taken != 0 {
		t.Errorf("%d receives are taken by nobody", s.taken)
	}
	var v Receive
	if !s.Take(&v) {
		t.Fatal("there is no receive")
	}
	destroy("a message has a receive", abi.StatusBusy)
	v.Release()
	v.Release() // it is given back once
	destroy("nobody uses it", abi.StatusOK)
	g.good(g.DeallocPD(g.pdn))
}

// TestTheLimitOfASharedQueueIsReportedOnce: the driver is told once that fewer entries than the
// limit are left, also if that is so when it sets the limit. It is not told while enough are left
// or the function has ended. (DEV-921)
func TestTheLimitOfASharedQueueIsReportedOnce(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newSRQ(abi.CreateSRQ{Limit: 2})
	s.receive(4)
	var v Receive
	for i, want := range []int{0, 0, 1, 1} { // 3, 2, 1 and 0 are left
		if !s.Take(&v) {
			t.Fatal("there is no receive")
		}
		v.Release()
		if len(g.events) != want {
			t.Errorf("with %d left: %d events, want %d", 3-i, len(g.events), want)
		}
	}
	if s.Take(&v) {
		t.Error("a receive of an empty queue")
	}
	s.receive(1)
	g.events = nil
	for limit, want := range []int{0, 0, 1} { // one is left
		_, st := g.ModifySRQ(&abi.ModifySRQ{SRQN: s.number, Mask: abi.SRQAttrLimit, Limit: uint32(limit)})
		g.good(st)
		if len(g.events) != want {
			t.Errorf("limit %d: %d events, want %d", limit, len(g.events), want)
		}
	}
}
