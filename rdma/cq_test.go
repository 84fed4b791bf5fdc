package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestAnArmedQueueSendsAnEvent tests DEV-707 and DEV-708.
func TestAnArmedQueueSendsAnEvent(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	events := func() int {
		h := p.hosts[1]
		n := len(h.cqEvents)
		for _, c := range h.cqEvents {
			if c != p.b.recv.number {
				t.Fatalf("event of CQ %#x", c)
			}
		}
		h.cqEvents = nil
		return n
	}
	send := func(flags uint8) {
		t.Helper()
		p.b.receive(1, p.mb.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: flags | abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, p.a.send.wait(1))
	}
	cq := p.b.recv
	send(0)
	if events() != 0 {
		t.Fatal("event without arming")
	}
	cq.arm(false) // an entry waits already
	if events() != 1 {
		t.Fatal("no event for the entry that was there: lost wake-up")
	}
	cq.poll()
	cq.arm(false)
	if events() != 0 {
		t.Fatal("event of an empty CQ")
	}
	send(0)
	send(0)
	if events() != 1 {
		t.Fatal("want exactly one event per arming")
	}
	cq.poll()
	cq.poll()
	cq.arm(true)
	send(0)
	if events() != 0 {
		t.Fatal("unsolicited completion raised a solicited event")
	}
	send(abi.SendSolicited)
	if events() != 1 {
		t.Fatal("no solicited event")
	}
	cq.arm(true) // the solicited one was not polled yet
	if events() != 1 {
		t.Fatal("no event for the solicited entry that was there")
	}
	cq.poll()
	cq.poll()
	cq.arm(true)
	if events() != 0 {
		t.Fatal("event of an empty CQ")
	}
	cq.arm(false)
	cq.arm(true) // does not weaken the earlier request
	send(0)
	if events() != 1 {
		t.Fatal("arming for solicited weakened arming for any")
	}
	cq.poll()
	cq.arm(true)
	p.b.receive(1, p.mb.sge(0, 1))
	p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 10))
	p.settle(1e8)
	if events() != 1 {
		t.Fatal("a failed completion counts as solicited")
	}
}

// TestAnArmWordSendsOneEvent: an armed CQ sends one event for each arming, at the requested entry,
// and none for entries that the driver finds when it checks again (DEV-709, DRV-709).
func TestAnArmWordSendsOneEvent(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.hosts[1].fn.UseFeatures(abi.FeatureArmWord)
	expect := func(what string, want int) {
		t.Helper()
		if got := len(p.hosts[1].cqEvents); got != want {
			t.Fatalf("%s: %d events, want %d", what, got, want)
		}
		p.hosts[1].cqEvents = nil
	}
	send := func(flags uint8) {
		t.Helper()
		p.b.receive(1, p.mb.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: flags | abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, p.a.send.wait(1))
	}
	cq := p.b.recv
	send(0)
	expect("not armed", 0)
	if !cq.armWord(false) {
		t.Fatal("the entry that was there is not found")
	}
	expect("an entry of before", 0)
	cq.poll()
	if cq.armWord(false) {
		t.Fatal("an empty CQ has an entry")
	}
	send(0)
	send(0)
	expect("two entries after one arming", 1)
	cq.poll()
	cq.poll()
	if cq.armWord(true) {
		t.Fatal("an empty CQ has a solicited entry")
	}
	send(0)
	expect("unsolicited", 0)
	send(abi.SendSolicited)
	send(abi.SendSolicited)
	expect("solicited", 1)
	if !cq.armWord(true) {
		t.Fatal("the solicited entry is not found")
	}
	for range 3 {
		cq.poll()
	}
	cq.armWord(true)
	cq.armWord(false) // replaces it
	send(0)
	expect("armed twice", 1)
	if x, _ := cq.poll(); x.Flags != 0 {
		t.Fatalf("flags %#x of an unsolicited entry", x.Flags)
	}
}

// TestALateArmAfterResizeIsNoViolation: a request for an event in the old area that comes after
// ResizeCQ, as from a kernel's req_notify_cq on another processor, causes an event at once and is
// no violation. An index ahead in a queue that was never resized is still one. (DEV-720, DRV-708)
func TestALateArmAfterResizeIsNoViolation(t *testing.T) {
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

// TestResizeKeepsEveryCompletion moves a queue with entries to a larger and a smaller area, under
// traffic. Each completion appears once, in order, in the old area first. (DEV-720)
func TestResizeKeepsEveryCompletion(t *testing.T) {
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

// TestModerationSendsEventsInTime checks when events are sent: at the count, at the period, at once
// without moderation, and never for an unarmed queue. (DEV-721)
func TestModerationSendsEventsInTime(t *testing.T) {
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

// TestArmingUpToTheLastEntryIsNoViolation: arming up to the entry that was written last, or before
// it, breaks no rule, however many entries there were before. (DRV-708)
func TestArmingUpToTheLastEntryIsNoViolation(t *testing.T) {
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

// TestAnOverflowFailsTheQueuePairsOfItsQueue fills a CQ. It gets an event, and its QPs fail. Other
// CQs and QPs of the function survive.
func TestAnOverflowFailsTheQueuePairsOfItsQueue(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	small := h.createCQ(2)
	a, b := h.createQP(p.pd[0], qpConfig{send: small}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 6 {
		a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	}
	p.settle(1e9)
	if a.q.State() != abi.QPStateErr || p.a.q.State() != abi.QPStateRTS {
		t.Fatalf("QPs in %v and %v", a.q.State(), p.a.q.State())
	}
	if len(h.async) != 2 || h.async[0].typ != abi.EventCQError || h.async[0].number != small.number ||
		h.async[1].typ != abi.EventQPFatal || h.async[1].number != a.number {
		t.Fatalf("events %+v", h.async)
	}
	success(t, small.wait(4))
	if _, ok := small.poll(); ok {
		t.Fatal("entry after the overflow")
	}
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	success(t, p.a.send.wait(1))
	ok(t, h.fn.DestroyQP(p.now, a.number))
	ok(t, h.fn.DestroyCQ(small.number))
}

// TestEverySlotOfACompletionQueueIsUsable uses every slot of a CQ, round and round.
func TestEverySlotOfACompletionQueueIsUsable(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{send: nil})
	small := p.hosts[0].createCQ(2)
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{send: small}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 9 {
		for range 4 {
			a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}
		p.settle(1e7)
		success(t, small.wait(4))
	}
}
