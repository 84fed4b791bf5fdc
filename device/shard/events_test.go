package shard

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/abi/schema"
	"github.com/falcon-vnic/vnic/queues/ring"
)

var eventLayout = ring.QueueLayout(abi.WindowEventsLog2, 3)

// testIRQ is a window's event queues in plain memory, with the driver's end of the first.
type testIRQ struct {
	queues.Bell
	mem    [2]ring.Mem
	raised [2]int
	events *ring.Consumer
}

func newTestIRQ() *testIRQ {
	q := &testIRQ{}
	for i := range q.mem {
		q.mem[i] = make(ring.Mem, eventLayout.Size())
	}
	q.events = ring.NewConsumer(q.mem[0], eventLayout)
	return q
}

func (q *testIRQ) EventQueues() (all []ring.Bytes) {
	for _, m := range q.mem {
		all = append(all, m)
	}
	return all
}

func (q *testIRQ) Interrupt(vector int) { q.raised[vector]++ }

// take takes all records.
func (q *testIRQ) take(t *testing.T) (cqns []uint32) {
	t.Helper()
	n, err := q.events.Poll()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		var b [abi.WindowEventSize]byte
		if err := q.events.Read(b[:]); err != nil {
			t.Fatal(err)
		}
		q.events.Take()
		cqns = append(cqns, binary.LittleEndian.Uint32(b[:]))
	}
	if err := q.events.Commit(); err != nil {
		t.Fatal(err)
	}
	return cqns
}

// arm asks for an interrupt and reports whether there are records already.
func (q *testIRQ) arm(t *testing.T) bool {
	t.Helper()
	n, err := q.events.Arm()
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// interrupted returns a driver with event queues, whose CQ uses the first.
func interrupted(v *virtual, nic int) (*driver, *testIRQ) {
	d, q := newDriverWith(v, nic, 1, abi.FeatureVectors|abi.FeatureArmWord|abi.FeatureEventIndex), newTestIRQ()
	v.shards[nic].guests.OpenEvents(d.b, q)
	d.vector = 1
	return d, q
}

// TestEachArmingBringsOneInterrupt checks that there are as many interrupts as the driver arms for, and one record
// for a CQ with many events (DEV-1008 to DEV-1010).
func TestEachArmingBringsOneInterrupt(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d, q := interrupted(v, 0)
	d.setUp()
	news := func() { // armed behind: the event comes at once
		d.ring(abi.DoorbellCQArm, d.cqn, ^uint32(0))
		v.step()
	}
	expect := func(what string, interrupts, records int) {
		t.Helper()
		got := q.take(t)
		for _, n := range got {
			if n != d.cqn {
				t.Errorf("%s: event of CQ %d, want %d", what, n, d.cqn)
			}
		}
		if q.raised != [2]int{interrupts, 0} || len(got) != records {
			t.Errorf("%s: %v interrupts and %d records, want %d and %d", what, q.raised, len(got), interrupts, records)
		}
		q.raised[0] = 0
	}
	for range 100 {
		news()
	}
	expect("the first", 1, 1)
	news()
	expect("not armed", 0, 1)
	if q.arm(t) {
		t.Fatal("records in an empty queue")
	}
	for range 100 {
		news()
	}
	expect("armed", 1, 1)
	for i := range 3 << abi.WindowEventsLog2 { // several times around the ring
		news()
		if got := q.take(t); len(got) != 1 {
			t.Fatalf("event %d: %d records", i, len(got))
		}
	}
	d.collect()
	if cqs, _ := d.ch.Waiting(); len(cqs) != 0 {
		t.Error("events went over the stream as well")
	}
	// A reset forgets the CQs and not the queue.
	d.write(abi.RegControl, 4, uint64(abi.ControlReset))
	q.raised[0] = 0
	d.setUp()
	if q.arm(t) {
		t.Fatal("records of nothing")
	}
	news()
	expect("after a reset", 1, 1)
}

// TestADriverWokenByInterruptsMissesNothing runs a driver that sleeps whenever it has nothing to do and is woken by
// interrupts alone, over a bad wire and at bad moments: it misses nothing.
func TestADriverWokenByInterruptsMissesNothing(t *testing.T) {
	for seed := range uint64(10) {
		v := newVirtual(t, seed, sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.02})
		a, q := interrupted(v, 0)
		b := newDriver(v, 1, 1)
		a.setUp()
		b.setUp()
		a.connectTo(b, 99)
		r := rand.New(rand.NewPCG(seed, 2))
		const total = 300
		posted, done, seen, slept := 0, 0, 0, 0
		work := func() {
			for {
				q.take(t)
				cqe, ok := a.completion()
				for ; ok; cqe, ok = a.completion() {
					if cqe.Status != abi.WCSuccess {
						t.Fatal(cqe.Status)
					}
					done++
				}
				for range r.IntN(4) {
					if posted < total && posted-done < 1<<sqLog2 {
						a.send(abi.OpWrite, 0, 1+r.IntN(5000), b, 0)
						posted++
					}
				}
				if posted == done && posted < total {
					continue
				}
				if err := a.comp.Arm(false); err != nil {
					t.Fatal(err)
				}
				if ready, err := a.comp.Ready(false); err != nil {
					t.Fatal(err)
				} else if !ready && !q.arm(t) {
					slept++
					return
				}
			}
		}
		work()
		v.until("all completions", func() bool {
			if q.raised[0] > seen {
				seen = q.raised[0]
				work()
				v.step()
			}
			return done == total
		})
		if seen < 10 || seen > slept+1 {
			t.Errorf("seed %d: %d interrupts for %d sleeps", seed, seen, slept)
		}
	}
}

// TestEventQueueHostile checks that drivers that misuse event queues lose their function, or are
// refused, and affect nobody else. (DEV-1011)
func TestEventQueueHostile(t *testing.T) {
	create := func(d *driver, vector uint16) abi.Status {
		st, _ := d.command(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 1, Levels: 1, Vector: vector, Pages: d.list(3, 40, 1)})
		return st
	}
	v := newVirtualWith(t, 1, wire100us, func(_ int, c *config.Config) { c.Functions[0].VFs[0].Limits.CQ = 2000 })
	d, q := interrupted(v, 0)
	d.setUp()
	if st := create(d, 3); st != abi.StatusInvalidArgument {
		t.Errorf("a vector too high: %s", st)
	}
	made := 0
	for create(d, 2) == abi.StatusOK {
		made++
	}
	if made != 1<<abi.WindowEventsLog2 {
		t.Errorf("%d CQs on one event queue", made)
	}
	if st := create(d, 1); st != abi.StatusOK {
		t.Errorf("on the other: %s", st)
	}
	_ = q.mem[0].Store32(abi.QueueHeaderConsumer, 5)
	d.ring(abi.DoorbellCQArm, d.cqn, ^uint32(0))
	v.step()
	d.ring(abi.DoorbellCQArm, d.cqn, ^uint32(0))
	v.step()
	if e := d.event(abi.EventFunctionFault); abi.Fault(e.Status) != abi.FaultRing {
		t.Errorf("%s", abi.Fault(e.Status))
	}

	d, q = interrupted(v, 1)
	d.setUp()
	for i := range 1<<abi.WindowEventsLog2 + 1 { // events of CQs that were destroyed
		r := d.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 1, Levels: 1, Vector: 1, Pages: d.list(3, 40, 1)})
		cqn := binary.LittleEndian.Uint32(r)
		d.ring(abi.DoorbellCQArm, cqn, ^uint32(0))
		if i < 1<<abi.WindowEventsLog2 {
			d.must(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: cqn})
		}
	}
	v.step()
	if e := d.event(abi.EventFunctionFault); abi.Fault(e.Status) != abi.FaultRing {
		t.Errorf("%s", abi.Fault(e.Status))
	}
	if q.raised[0] != 1 {
		t.Errorf("%d interrupts for a driver that never armed", q.raised[0])
	}

	plain := newDriver(v, 0, 2)
	v.shards[0].guests.OpenEvents(plain.b, newTestIRQ())
	plain.setUp()
	if st := create(plain, 1); st != abi.StatusInvalidArgument {
		t.Errorf("without the feature: %s", st)
	}
}

// TestRecordsAndEventsAllocateNothing checks that records and events allocate nothing.
func TestRecordsAndEventsAllocateNothing(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d, q := interrupted(v, 0)
	d.setUp()
	s := v.shards[0]
	rung := devicetest.NewBell(t)
	s.guests.Bells.Add(d.b, rung, nil)
	var record [abi.DoorbellSize]byte
	(&abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: d.cqn, Index: ^uint32(0)}).Marshal(record[:])
	var event [abi.WindowEventSize]byte
	round := func() {
		_ = rung.Driver.Push(record[:])
		_, _, _ = rung.Driver.Publish()
		if !s.guests.Bells.Poll(v.now) || s.guests.Bells.Arm() {
			t.Fatal("not one record")
		}
		s.guests.Show()
		s.effects.Do()
		if n, err := q.events.Poll(); n != 1 || err != nil {
			t.Fatalf("%d events, %v", n, err)
		}
		_ = q.events.Read(event[:])
		q.events.Take()
		_ = q.events.Commit()
	}
	if n := allocs.PerRun(1000, round); n != 0 {
		t.Errorf("%v allocations for a record and an event", n)
	}
}

// eventPair returns two drivers that use all events, with their objects.
func eventPair(t *testing.T) (v *virtual, a, b *driver) {
	v = newVirtual(t, 1, wire100us)
	a, b = newDriver(v, 0, 1), other(v)
	for _, d := range []*driver{a, b} {
		d.b.Features |= abi.FeatureExtendedVerbs
		d.setUp()
	}
	return v, a, b
}

// createSRQ creates a shared receive queue in the pages behind those of the QP.
func (d *driver) createSRQ(c abi.CreateSRQ) uint32 {
	d.v.t.Helper()
	c.PDN, c.Log2Entries, c.Log2Stride, c.MaxSGE, c.Levels, c.Pages = d.pdn, 3, 5, 1, 1, d.list(2, pageRQ+8, 1)
	return binary.LittleEndian.Uint32(d.must(abi.AdminOpCreateSRQ, &c))
}

// overflowCQ connects a to b and fills a's CQ.
func overflowCQ(v *virtual, a, b *driver) {
	a.connectTo(b, 5)
	for range 1<<cqLog2 + 1 {
		a.send(abi.OpWrite, 0, 8, b, 0)
		v.idle(100_000)
	}
}

// asyncEvents has, for every event of the ABI, a way to cause it without breaking a rule. The event
// goes to a, or with at 1 to b.
var asyncEvents = []struct {
	typ abi.EventType
	at  int
	way func(v *virtual, a, b *driver) (number uint32)
}{
	{abi.EventConnectRequest, 1, func(_ *virtual, a, b *driver) uint32 {
		b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
		a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
		return 0
	}},
	{abi.EventEstablished, 0, func(_ *virtual, a, b *driver) uint32 {
		b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
		r := a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
		b.must(abi.AdminOpCMAccept, &abi.CMAccept{CMID: b.event(abi.EventConnectRequest).Number, QPN: b.qpn})
		return binary.LittleEndian.Uint32(r)
	}},
	{abi.EventRejected, 0, func(_ *virtual, a, b *driver) uint32 {
		b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
		r := a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
		b.must(abi.AdminOpCMReject, &abi.CMReject{CMID: b.event(abi.EventConnectRequest).Number, Reason: 3})
		return binary.LittleEndian.Uint32(r)
	}},
	{abi.EventUnreachable, 0, func(_ *virtual, a, b *driver) uint32 {
		b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5}) // and never answers
		return binary.LittleEndian.Uint32(a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()}))
	}},
	{abi.EventDisconnected, 1, func(_ *virtual, a, b *driver) uint32 {
		a.connectTo(b, 5)
		a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
		return 0
	}},
	{abi.EventQPFatal, 0, func(_ *virtual, a, b *driver) uint32 {
		a.connectTo(b, 5)
		a.lkey++
		a.send(abi.OpWrite, 0, 8, b, 0)
		return a.qpn
	}},
	{abi.EventQPReqErr, 1, func(_ *virtual, a, b *driver) uint32 {
		a.connectTo(b, 5)
		a.send(abi.OpFetchAdd, 0, 8, b, 1)
		return b.qpn
	}},
	{abi.EventQPAccessErr, 1, func(_ *virtual, a, b *driver) uint32 {
		a.connectTo(b, 5)
		a.send(abi.OpWrite, 0, 8, b, 1<<30)
		return b.qpn
	}},
	{abi.EventCommEst, 1, func(_ *virtual, a, b *driver) uint32 {
		a.toRTR(b.qpn, b.fn.GID())
		a.toRTS()
		b.toRTR(a.qpn, a.fn.GID())
		a.send(abi.OpWrite, 0, 8, b, 0)
		return b.qpn
	}},
	{abi.EventSQDrained, 0, func(_ *virtual, a, b *driver) uint32 {
		a.connectTo(b, 5)
		a.send(abi.OpWrite, 0, 50000, b, 0)
		a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1})
		return a.qpn
	}},
	{abi.EventCQError, 0, func(v *virtual, a, b *driver) uint32 {
		overflowCQ(v, a, b)
		return a.cqn
	}},
	{abi.EventSRQError, 0, func(v *virtual, a, b *driver) uint32 {
		x := binary.LittleEndian.Uint32(a.must(abi.AdminOpOpenXRCD, nil))
		srqn := a.createSRQ(abi.CreateSRQ{Type: abi.SRQTypeXRC, XRCDN: x, CQN: a.cqn})
		overflowCQ(v, a, b)
		return srqn
	}},
	{abi.EventSRQLimit, 0, func(_ *virtual, a, _ *driver) uint32 {
		srqn := a.createSRQ(abi.CreateSRQ{})
		a.must(abi.AdminOpModifySRQ, &abi.ModifySRQ{SRQN: srqn, Mask: abi.SRQAttrLimit, Limit: 2}) // no receive is posted
		return srqn
	}},
	{abi.EventLastWQE, 0, func(_ *virtual, a, _ *driver) uint32 {
		srqn := a.createSRQ(abi.CreateSRQ{})
		qpn := binary.LittleEndian.Uint32(a.must(abi.AdminOpCreateQP, &abi.CreateQP{
			PDN: a.pdn, SendCQ: a.cqn, RecvCQ: a.cqn, Type: abi.QPTypeRC, SRQN: srqn,
			SQLog2Entries: 1, SQLog2Stride: 6, SQLevels: 1, SQPages: a.list(3, pageRQ+9, 1),
		}))
		for _, state := range []abi.QPState{abi.QPStateInit, abi.QPStateErr} {
			a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: qpn, Mask: abi.QPAttrState, State: state})
		}
		return qpn
	}},
	{abi.EventFunctionFault, 0, func(_ *virtual, a, _ *driver) uint32 {
		a.ring(abi.DoorbellAdmin, 0, 1000) // more than a queue ahead
		return 0
	}},
	{abi.EventFunctionState, 0, func(v *virtual, a, _ *driver) uint32 {
		v.mustOperate(0, "pf0.vf1", "reset")
		return uint32(a.fn.ID)
	}},
	{abi.EventLinkState, 0, func(v *virtual, _, _ *driver) uint32 {
		v.mustOperate(0, "pf0.vf1", "", "state", "disable")
		return 0
	}},
}

// TestEveryEventOfTheABICanHappen causes each event, and fails if the ABI has an event that is not in asyncEvents.
func TestEveryEventOfTheABICanHappen(t *testing.T) {
	missing := map[abi.EventType]bool{}
	for _, v := range schema.Current.Enum("EventType").Values {
		missing[abi.EventType(v.Value)] = true
	}
	for _, c := range asyncEvents {
		t.Run(c.typ.String(), func(t *testing.T) {
			v, a, b := eventPair(t)
			number := c.way(v, a, b)
			e := []*driver{a, b}[c.at].event(c.typ)
			if number != 0 && e.Number != number {
				t.Errorf("event of %#x, want %#x", e.Number, number)
			}
		})
		delete(missing, c.typ)
	}
	for typ := range missing {
		t.Errorf("no way to %v", typ)
	}
}

// TestADriverThatIsBehindLosesNoEvent checks that a driver that takes no events for a long time loses none and gets no
// connections meanwhile, and gets some again when it has taken them. (DEV-205, DEV-211)
func TestADriverThatIsBehindLosesNoEvent(t *testing.T) {
	const many = 5000
	_, a, b := eventPair(t)
	a.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	for round := range 3 {
		for n := range uint32(many) {
			a.fn.AsyncEvent(abi.EventSRQLimit, n, uint32(round), "")
		}
	}
	connect := &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()}
	if st, _ := a.command(abi.AdminOpCMConnect, connect); st != abi.StatusBusy {
		t.Errorf("CMConnect of a driver that takes no events: %s", st)
	}
	b.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: b.qpn, Service: 5, DGID: a.fn.GID()})
	b.event(abi.EventRejected)

	a.collect()
	if len(a.async) != many {
		t.Fatalf("%d events of %d objects came", len(a.async), many)
	}
	for n, e := range a.async {
		if e.Type != abi.EventSRQLimit || e.Number != uint32(n) || e.Status != 2 {
			t.Fatalf("event %d: %+v", n, e)
		}
	}
	a.async = nil
	a.must(abi.AdminOpCMConnect, connect)
	b.event(abi.EventConnectRequest)
}
