package shard

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Tests of a guest that attacks its neighbours with everything that the ABI allows it to send. The
// attack may affect its own function only: the victim's memory, keys, queue pairs, events and
// credits do not change, and its traffic goes on.

// victim is a working pair of functions, with a copy of their state before an attack.
type victim struct {
	a, b   *driver
	memory []byte
	events int
	resets uint64
}

func newVictim(v *virtual) *victim {
	v.t.Helper()
	x := &victim{}
	x.a, x.b = pair(v)
	x.traffic(v)
	x.a.collect()
	x.memory, x.events, x.resets = bytes.Clone(x.a.mem), len(x.a.async), x.a.fn.Lifecycle.Resets()
	return x
}

// traffic does one WRITE each way.
func (x *victim) traffic(v *virtual) {
	v.t.Helper()
	x.a.send(abi.OpWrite, 0, 8192, x.b, 0)
	if cqe := x.a.done(); cqe.Status != abi.WCSuccess {
		v.t.Fatalf("the victim's WRITE: %s", cqe.Status)
	}
}

// unharmed compares the victim with its copy and runs its traffic again.
func (x *victim) unharmed(v *virtual, attack string) {
	v.t.Helper()
	x.a.collect()
	switch f := x.a.fn; {
	case !bytes.Equal(x.memory, x.a.mem):
		v.t.Errorf("%s: the victim's memory changed", attack)
	case len(x.a.async) != x.events:
		v.t.Errorf("%s: the victim got events %+v", attack, x.a.async[x.events:])
	case f.Lifecycle.State() != abi.StateReady || f.Lifecycle.Resets() != x.resets:
		v.t.Errorf("%s: the victim is in %s", attack, f.Lifecycle.State())
	case f.Credits.InUse() != (credit.Cost{}):
		v.t.Errorf("%s: the victim holds credits %v", attack, f.Credits.InUse())
	}
	x.traffic(v)
	x.memory = bytes.Clone(x.a.mem)
}

// TestAttackByNumbers uses the numbers of the victim's objects, which it knows, from another
// function of the same NIC.
func TestAttackByNumbers(t *testing.T) {
	v := newVirtual(t, 40, wire100us)
	x := newVictim(v)
	var cm uint32
	for _, id := range x.a.fn.conns.IDs() {
		cm = id
	}
	d := newDriver(v, 0, 2)
	fresh := func() {
		d.write(abi.RegControl, 4, uint64(abi.ControlReset))
		clear(d.mem)
		d.enable()
	}
	fresh()
	for name, attack := range map[string]func() abi.Status{
		"DeallocPD":    func() abi.Status { st, _ := d.command(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: x.a.pdn}); return st },
		"DeregMR":      func() abi.Status { st, _ := d.command(abi.AdminOpDeregMR, &abi.DeregMR{LKey: x.a.lkey}); return st },
		"DestroyCQ":    func() abi.Status { st, _ := d.command(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: x.a.cqn}); return st },
		"DestroyQP":    func() abi.Status { st, _ := d.command(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: x.a.qpn}); return st },
		"QueryQP":      func() abi.Status { st, _ := d.command(abi.AdminOpQueryQP, &abi.QueryQP{QPN: x.a.qpn}); return st },
		"CMDisconnect": func() abi.Status { st, _ := d.command(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: cm}); return st },
		"CMReject":     func() abi.Status { st, _ := d.command(abi.AdminOpCMReject, &abi.CMReject{CMID: cm}); return st },
		"CMUnlisten":   func() abi.Status { st, _ := d.command(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 99}); return st },
		"ModifyQP": func() abi.Status {
			st, _ := d.command(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: x.a.qpn, Mask: abi.QPAttrState, State: abi.QPStateErr})
			return st
		},
		"CreateQP": func() abi.Status {
			st, _ := d.command(abi.AdminOpCreateQP, &abi.CreateQP{
				PDN: x.a.pdn, SendCQ: x.a.cqn, RecvCQ: x.a.cqn, Type: abi.QPTypeRC, SQLog2Entries: 2, RQLog2Entries: 2, SQLog2Stride: 7, RQLog2Stride: 5,
				MaxSendSGE: 1, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: d.list(0, 64, 1), RQPages: d.list(1, 66, 1),
			})
			return st
		},
	} {
		if st := attack(); st != abi.StatusNotFound {
			t.Errorf("%s of another function's object: %s", name, st)
		}
		x.unharmed(v, name)
	}
	for name, bell := range map[string]abi.Doorbell{
		"SQ doorbell": {Kind: abi.DoorbellSQ, Queue: x.a.qpn, Index: 9},
		"RQ doorbell": {Kind: abi.DoorbellRQ, Queue: x.a.qpn, Index: 9},
		"CQ arming":   {Kind: abi.DoorbellCQArm, Queue: x.a.cqn, Index: 0},
	} {
		fresh()
		d.ch.Ring(bell.Kind, bell.Queue, bell.Index)
		v.step()
		if state := d.fn.Lifecycle.State(); state != abi.StateReady { // DEV-801: it has no effect
			t.Errorf("%s for another function's queue: %s", name, state)
		}
		x.unharmed(v, name)
	}
}

// TestAttackByKeys uses the victim's keys: locally, where they are not valid, and at a peer of the
// attacker's own, which has not issued them.
func TestAttackByKeys(t *testing.T) {
	v := newVirtual(t, 41, wire100us)
	x := newVictim(v)
	// The attackers' keys must differ from the victims', or using those would be legal.
	d, e := newDriver(v, 0, 2), newDriver(v, 1, 2)
	for _, y := range []*driver{d, e} {
		y.enable()
		y.must(abi.AdminOpAllocPD, nil)
		for range 3 {
			y.must(abi.AdminOpRegMR, &abi.RegMR{PDN: 1, Access: abi.AccessLocalWrite, IOVA: y.addr(300), Length: pageSize, Pages: y.list(0, 300, 1), Levels: 1})
		}
		y.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: x.a.lkey})
		y.objects()
	}
	service := uint64(7)
	again := func() {
		d.createQP()
		e.createQP()
		d.connectTo(e, service)
		service++
	}
	d.connectTo(e, service)
	service++
	remote := bytes.Clone(x.b.mem)
	for name, attack := range map[string]func() abi.WCStatus{
		"local key": func() abi.WCStatus {
			mine := d.lkey
			d.lkey = x.a.lkey
			d.send(abi.OpWrite, 0, 64, e, 0)
			d.lkey = mine
			return d.done().Status
		},
		"remote key, READ": func() abi.WCStatus {
			theirs := *e
			theirs.rkey = x.b.rkey
			d.send(abi.OpRead, 0, 64, &theirs, 0)
			return d.done().Status
		},
		"remote key, WRITE": func() abi.WCStatus {
			theirs := *e
			theirs.rkey = x.b.rkey
			d.send(abi.OpWrite, 0, 64, &theirs, 0)
			return d.done().Status
		},
	} {
		if st := attack(); st != abi.WCLocProtErr && st != abi.WCRemAccessErr {
			t.Errorf("%s: %s", name, st)
		}
		x.unharmed(v, name)
		v.idle(1e9)
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
		e.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: e.qpn})
		clear(d.page(pageSQ)[:4*pageSize])
		clear(e.page(pageSQ)[:4*pageSize])
		clear(d.page(pageRQ)[:pageSize])
		clear(e.page(pageRQ)[:pageSize])
		again()
	}
	if i := pageData * pageSize; !bytes.Equal(remote[:i/2], x.b.mem[:i/2]) {
		t.Error("the memory of the victim's peer changed")
	}
}

// TestAttackOtherTenant connects to an address that another tenant has too, and to one that only
// another tenant has.
func TestAttackOtherTenant(t *testing.T) {
	v := newVirtual(t, 42, wire100us)
	x := newVictim(v)
	x.b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	d := newDriver(v, 0, 4) // tenant 8, with the address of VF 1
	d.setUp()
	for _, to := range []*driver{x.a, x.b} {
		if st, _ := d.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, Service: 5, DGID: to.fn.GID()}); st != abi.StatusUnreachable && st != abi.StatusOK {
			t.Errorf("connect to %s: %s", to.fn.ID, st)
		}
		v.idle(1e9)
	}
	x.unharmed(v, "connect across tenants")
	x.b.collect()
	for _, e := range x.b.async {
		if e.Type == abi.EventConnectRequest {
			t.Errorf("a request of another tenant arrived: %+v", e)
		}
	}
}

// TestAttackByFaults stops its own function by every fault, again and again, and fills every
// bounded queue: a WRITE of the victim takes no longer than without.
func TestAttackByFaults(t *testing.T) {
	v := newVirtual(t, 43, wire100us)
	x := newVictim(v)
	timed := func() falcon.Time {
		start := v.now
		x.traffic(v)
		return v.now - start
	}
	alone := timed()
	d := newDriver(v, 0, 2)
	r := rand.New(rand.NewPCG(1, 2))
	faults := 0
	for range 300 {
		if d.fn.Lifecycle.State() != abi.StateReset {
			if d.fn.Lifecycle.State() == abi.StateError {
				faults++
			}
			d.write(abi.RegControl, 4, uint64(abi.ControlReset))
		}
		d.enable()
		for range 20 {
			it := guest.Request{Kind: guest.RequestKind(r.IntN(3)), Tag: 1, Offset: uint32(r.IntN(0x200)), Width: 4 << r.IntN(2), Value: r.Uint64()}
			it.Doorbell = abi.Doorbell{Kind: abi.DoorbellKind(r.IntN(5)), Queue: uint32(r.IntN(8)), Index: r.Uint32()}
			if it.Kind == guest.RegWrite && it.Offset == abi.RegControl {
				continue
			}
			d.ch.Ask(it)
		}
		for i := range d.page(pageAdminSQ)[:pageSize] {
			d.page(pageAdminSQ)[i] = byte(r.Uint32())
		}
		x.a.send(abi.OpWrite, 0, 8192, x.b, 0) // under way while the attack is handled
		if cqe := x.a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
		d.collect()
	}
	if faults < 100 {
		t.Errorf("only %d faults", faults)
	}
	x.a.collect()
	x.events = len(x.a.async)
	x.memory = bytes.Clone(x.a.mem)
	x.unharmed(v, "faults")
	if beside := timed(); beside > alone*11/10 {
		t.Errorf("a WRITE takes %d ns, alone %d", beside, alone)
	}
	if n := v.shards[0].guests.Unfinished(); n > 1 {
		t.Errorf("%d entries left in the shard's lists", n)
	}
}
