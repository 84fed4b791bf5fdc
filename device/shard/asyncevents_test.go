package shard

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

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

// TestEveryEvent causes each event, and fails if the ABI has an event that is not in asyncEvents.
func TestEveryEvent(t *testing.T) {
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

// TestEventFlood checks that a driver that takes no events for a long time loses none and gets no
// connections meanwhile, and gets some again when it has taken them. (DEV-205, DEV-211)
func TestEventFlood(t *testing.T) {
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
