package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestArmOvertaken: a request for an event in the old area that comes after ResizeCQ, as from a
// kernel's req_notify_cq on another processor, causes an event at once and is no violation. An
// index ahead in a queue that was never resized is still one. (DEV-720, DRV-708)
func TestArmOvertaken(t *testing.T) {
	for _, resized := range []bool{true, false} {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		h := p.hosts[0]
		for range 4 {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
		}
		success(t, p.a.send.wait(4))
		layout := ring.CQLayout(6)
		n := int(layout.Size())
		at := h.alloc(n)
		late := &abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: p.a.send.number, Index: p.a.send.reader.Next() + 1}
		if resized {
			late.Index--
			ok(t, h.fn.ResizeCQ(&abi.ResizeCQ{CQN: p.a.send.number, Log2Entries: 6, Levels: 1, Pages: h.pageList(at, n, 1)}))
			p.a.send.reader = ring.NewCQReader(ring.Mem(h.bytes(at, n)), layout)
		}
		h.cqEvents = nil
		h.fn.Doorbell(p.now, late)
		if (len(h.violations) == 0) != resized {
			t.Fatalf("resized %t: violations %+v", resized, h.violations)
		}
		if len(h.cqEvents) != 1 {
			t.Fatalf("%d events", len(h.cqEvents))
		}
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
		success(t, p.a.send.wait(1))
		if len(h.cqEvents) != 1 {
			t.Fatalf("%d events: the late arming holds on", len(h.cqEvents))
		}
	}
}

// TestResizeCQ moves a queue with entries to a larger and a smaller area, under traffic. Each
// completion appears once, in order, in the old area first. (DEV-720)
func TestResizeCQ(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	next := uint64(0)
	post := func(n int) {
		for range n {
			x := p.remote(abi.OpWrite, 0)
			x.WRID = next
			next++
			p.a.post(x, p.ma.sge(0, 100))
		}
	}
	want := uint64(0)
	for _, log2 := range []uint8{2, 6, 3} {
		post(4)
		p.settle(1e7)
		post(2) // on their way
		layout := ring.CQLayout(log2)
		n := int(layout.Size())
		at := h.alloc(n)
		h.cqEvents = nil
		if st := h.fn.ResizeCQ(&abi.ResizeCQ{CQN: p.a.send.number, Log2Entries: 1, Levels: 1, Pages: h.pageList(at, n, 1)}); st != abi.StatusInvalidArgument {
			t.Errorf("2 entries, where 4 wait: %v", st)
		}
		ok(t, h.fn.ResizeCQ(&abi.ResizeCQ{CQN: p.a.send.number, Log2Entries: log2, Levels: 1, Pages: h.pageList(at, n, 1)}))
		if len(h.cqEvents) != 1 {
			t.Fatal("no event: what was armed in the old area is lost")
		}
		old := *p.a.send
		p.a.send.reader = ring.NewCQReader(ring.Mem(h.bytes(at, n)), layout)
		for range 4 {
			c, any := old.poll()
			if !any || c.WRID != want {
				t.Fatalf("old area: %+v %t, want %d", c, any, want)
			}
			want++
		}
		p.settle(1e7)
		if _, any := old.poll(); any {
			t.Fatal("written to the old area after the command")
		}
		for _, c := range p.a.send.wait(2) {
			if c.WRID != want || c.Status != abi.WCSuccess {
				t.Fatalf("new area: %+v, want %d", c, want)
			}
			want++
		}
		p.a.send.arm(false) // with an index of the new area
	}
	if st := h.fn.ResizeCQ(&abi.ResizeCQ{CQN: p.a.send.number, Log2Entries: 19}); st != abi.StatusTooLarge {
		t.Errorf("2^19 entries: %v", st)
	}
	if st := h.fn.ResizeCQ(&abi.ResizeCQ{CQN: p.a.send.number, Log2Entries: 3, Levels: 1}); st != abi.StatusMemoryFault {
		t.Errorf("unmapped: %v", st)
	}
	if st := h.fn.ResizeCQ(&abi.ResizeCQ{CQN: 99, Log2Entries: 3}); st != abi.StatusNotFound {
		t.Errorf("no CQ: %v", st)
	}
}

// TestModeration checks when events are sent: at the count, at the period, at once without
// moderation, and never for an unarmed queue. (DEV-721)
func TestModeration(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	c := p.a.send
	set := func(count, period uint16) {
		ok(t, h.fn.ModifyCQ(&abi.ModifyCQ{CQN: c.number, Count: count, Period: period}))
	}
	write := func(n int) {
		for range n {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
			p.settle(200e3)
		}
	}
	drain := func() {
		for c.drop() {
		}
	}
	events := func(what string, want int) {
		t.Helper()
		if len(h.cqEvents) != want {
			t.Fatalf("%s: %d events, want %d", what, len(h.cqEvents), want)
		}
		h.cqEvents = nil
	}
	set(4, 50000)
	write(8)
	events("not armed", 0)
	drain()
	c.arm(false)
	write(3)
	events("three of four", 0)
	write(1)
	events("four of four", 1)
	write(4)
	events("not armed again", 0)
	drain()
	c.arm(false)
	start := p.now
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.run(60e9, func() bool { return len(h.cqEvents) > 0 })
	if took := p.now - start; took < 50e6 || took > 60e6 {
		t.Fatalf("period of 50 ms over after %d µs", took/1000)
	}
	events("period", 1)
	drain()
	c.arm(false)
	write(1)
	set(0, 0) // what is due comes
	events("moderation ended", 1)
	drain()
	c.arm(false)
	write(1)
	events("no moderation", 1)
	set(1, 100)
	drain()
	c.arm(false)
	write(1)
	events("count of one", 1)
	// A queue that is destroyed while an event is due leaves no timer.
	set(10, 50000)
	drain()
	c.arm(false)
	write(1)
	ok(t, h.fn.DestroyQP(p.now, p.a.number))
	ok(t, h.fn.DestroyCQ(c.number))
	p.settle(falcon.Time(1e9))
	events("destroyed", 0)
	if h.e.shared.Timers.Deadline() != vtime.Never {
		t.Fatal("a timer is left")
	}
}

// TestArmIsNoFault: arming up to the entry that was written last, or before it, breaks no rule,
// however many entries there were before. (DRV-708)
func TestArmIsNoFault(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	for range 5 {
		p.a.send.arm(false)
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
		p.settle(1e6)
		p.a.send.arm(false)
		success(t, p.a.send.wait(1))
	}
	if v := p.hosts[0].violations; len(v) != 0 {
		t.Errorf("violations %+v", v)
	}
}
