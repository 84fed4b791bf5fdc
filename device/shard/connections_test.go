package shard

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// drivers sets up one driver per side, not connected.
func drivers(v *virtual) (a, b *driver) {
	v.t.Helper()
	a, b = newDriver(v, 0, 1), other(v)
	a.setUp()
	b.setUp()
	return a, b
}

// settled checks that both sides have nothing left of any connection.
func settled(t *testing.T, v *virtual) {
	t.Helper()
	v.idle(10e9)
	for i, s := range v.all() {
		if n := v.core(s).Manager.CIDsInUse(); n != 0 || s.table.Named() != 0 || s.txSAs.Len() > 1 || s.falcon.Stats().Conns != 0 || len(v.core(s).Manager.Connections()) != 0 {
			t.Errorf("shard %d: %d CIDs, %d open, %d transmit SAs, %d transport connections, %d of the manager",
				i, n, s.table.Named(), s.txSAs.Len(), s.falcon.Stats().Conns, len(v.core(s).Manager.Connections()))
		}
		for f := range s.funcs.there.all() {
			if ids, qps := f.conns.IDs(), f.conns.QPs(); len(ids) != 0 || qps != 0 {
				t.Errorf("%s remembers %d connections of %d queue pairs", f.ID, len(ids), qps)
			}
		}
	}
}

func TestConnectRejected(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := drivers(v)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	copy(a.page(pageData), "question")
	copy(b.page(pageData), "answer")
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID(), Priv: a.addr(pageData), PrivLen: 8})
	e := b.event(abi.EventConnectRequest)
	if e.Service != 5 || e.SrcGID != a.fn.GID() || e.PeerQPN != a.qpn || string(e.Priv[:e.PrivLen]) != "question" {
		t.Errorf("%+v", e)
	}
	if st, _ := a.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()}); st != abi.StatusBadState {
		t.Errorf("second connect of a QP: %s", st)
	}
	b.must(abi.AdminOpCMReject, &abi.CMReject{CMID: e.Number, Reason: 42, Priv: b.addr(pageData), PrivLen: 6})
	e = a.event(abi.EventRejected)
	if e.Status != 42 || string(e.Priv[:e.PrivLen]) != "answer" {
		t.Errorf("%+v", e)
	}
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 6, DGID: b.fn.GID()})
	if e = a.event(abi.EventRejected); e.Status != uint32(abi.StatusRefused) {
		t.Errorf("nobody listens: %s", abi.Status(e.Status))
	}
	settled(t, v)
	a.connectTo(b, 7) // the QP is like a new one
	exchange(t, a, b, 100)
}

// TestConnectionEnds ends connections in every possible way and checks that nothing is left of
// them. (DEV-903, DEV-905)
func TestConnectionEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(a, b *driver, id uint32)
	}{
		{"disconnect", func(a, _ *driver, id uint32) { a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id}) }},
		{"QP destroyed", func(a, _ *driver, _ uint32) { a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn}) }},
		{"QP to ERR", func(a, _ *driver, _ uint32) {
			a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrState, State: abi.QPStateErr})
		}},
		{"QP reset", func(a, _ *driver, _ uint32) {
			a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrState, State: abi.QPStateReset})
		}},
		{"function reset", func(a, _ *driver, _ uint32) { a.write(abi.RegControl, 4, uint64(abi.ControlReset)) }},
		{"access violation", func(a, b *driver, _ uint32) {
			rkey := b.rkey
			b.rkey++
			a.send(abi.OpWrite, 0, 100, b, 0)
			b.rkey = rkey
			if cqe := a.done(); cqe.Status != abi.WCRemAccessErr {
				a.v.t.Errorf("WRITE with a wrong key: %s", cqe.Status)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := pair(v)
			exchange(t, a, b, 5000)
			tc.end(a, b, a.connID())
			b.event(abi.EventDisconnected)
			settled(t, v)
			if st := b.fn.Verbs().QP(b.qpn).State(); st != abi.QPStateErr {
				t.Errorf("the peer's QP is in %s", st)
			}
		})
	}
}

// TestEndWhileConnecting removes one side in the middle of the handshake. (DEV-903, DEV-904)
func TestEndWhileConnecting(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(a, b *driver, request uint32)
	}{
		{"active QP destroyed", func(a, _ *driver, _ uint32) { a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn}) }},
		{"active function reset", func(a, _ *driver, _ uint32) { a.write(abi.RegControl, 4, uint64(abi.ControlReset)) }},
		{"passive function reset", func(_, b *driver, _ uint32) { b.write(abi.RegControl, 4, uint64(abi.ControlReset)) }},
		{"passive stops listening", func(_, b *driver, _ uint32) { b.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 5}) }},
		{"passive QP destroyed after accept", func(_, b *driver, id uint32) {
			b.must(abi.AdminOpCMAccept, &abi.CMAccept{CMID: id, QPN: b.qpn})
			b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
		}},
		{"link down", func(a, _ *driver, _ uint32) { a.v.linkDown() }},
		{"nobody answers", func(*driver, *driver, uint32) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := drivers(v)
			b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
			a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
			tc.do(a, b, b.event(abi.EventConnectRequest).Number)
			v.idle(60e9)
			settled(t, v)
		})
	}
}

// linkDown breaks the connection managers' link and drops what is in flight.
func (v *virtual) linkDown() {
	for i := range v.nics {
		v.mail[i] = nil
		v.peers[i].Down()
	}
	v.step()
}

func (v *virtual) linkUp() {
	for i := range v.nics {
		v.peers[i].Up()
	}
	v.idle(5 * cmDelay)
}

// TestLinkOutage checks that established connections survive an outage of the managers' link.
func TestLinkOutage(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	v.linkDown()
	exchange(t, a, b, 50_000)
	if st, _ := a.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()}); st != abi.StatusBadState {
		t.Errorf("connect of a connected QP: %s", st)
	}
	v.linkUp()
	exchange(t, a, b, 50_000)
	a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: a.connID()})
	b.event(abi.EventDisconnected)
	settled(t, v)
}

// TestManyConnections opens several connections one after the other and at the same time, and
// checks how they share CIDs, SAs and slots.
func TestManyConnections(t *testing.T) {
	v := newVirtual(t, 3, wire100us)
	a, b := drivers(v)
	for i := range 40 {
		if i > 0 {
			a.createQPAgain()
			b.createQPAgain()
		}
		a.connectTo(b, uint64(i+1))
		exchange(t, a, b, 3000)
		if n := v.sum(0, func(s *Shard) uint64 { return uint64(s.txSAs.Len()) }); n != 1 {
			t.Fatalf("%d transmit SAs for one peer and tenant", n)
		}
		if n := v.cores[0].Keys.Stats().SPIs; n != 1 {
			t.Fatalf("%d receive SAs for one peer and tenant", n)
		}
		a.collect()
		b.collect()
		a.async, b.async = nil, nil
	}
}

// TestAdminBacklog posts as many commands as fit, with registrations so large that they take
// several Steps, and checks that all are answered: the short ones first (DEV-507).
func TestAdminBacklog(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.setUp()
	// One list page of 512 entries, listed 512 times: a region of 1 GiB over the same pages.
	for i := range 512 {
		binary.LittleEndian.PutUint64(d.page(pageLists + 3)[8*i:], d.addr(pageData+i))
		binary.LittleEndian.PutUint64(d.page(pageLists + 2)[8*i:], d.addr(pageLists+3))
	}
	var b [abi.AdminCmdSize]byte
	const n = 15
	for i := range uint32(n) {
		cmd := abi.AdminCmd{Opcode: abi.AdminOpRegMR, ID: 1000 + i}
		(&abi.RegMR{PDN: d.pdn, Access: abi.AccessLocalWrite, Length: 512 << 20, Pages: d.addr(pageLists + 2), Levels: 2}).Marshal(cmd.Params[:])
		if i%2 == 1 {
			cmd = abi.AdminCmd{Opcode: abi.AdminOpQueryDevice, ID: 1000 + i}
		}
		cmd.Marshal(b[:])
		if err := d.sq.Push(b[:]); err != nil {
			t.Fatal(err)
		}
	}
	index, _, _ := d.sq.Publish()
	d.ring(abi.DoorbellAdmin, 0, index)
	steps := v.shards[0].counters.steps
	seen := map[uint32]bool{}
	for i := range uint32(n) {
		v.until("admin completion", func() bool {
			ok, err := d.cq.Poll(b[:])
			if err != nil {
				t.Fatal(err)
			}
			return ok
		})
		var cqe abi.AdminCQE
		cqe.Unmarshal(b[:])
		short := cqe.ID%2 == 1
		if seen[cqe.ID] || cqe.ID < 1000 || cqe.ID >= 1000+n || short != (i < n/2) || cqe.Status != abi.StatusOK && cqe.Status != abi.StatusNoResources {
			t.Fatalf("completion %d: id %d, %s", i, cqe.ID, cqe.Status)
		}
		seen[cqe.ID] = true
	}
	if took := v.shards[0].counters.steps - steps; took < n/2 {
		t.Errorf("all commands ran in %d steps", took)
	}
}

// TestFirstWindow checks that neighbours are resolved while the managers talk, so that the first
// burst of a new connection is neither parked nor sent twice.
func TestFirstWindow(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 1<<20, b, 1<<20)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	for i, s := range v.all() {
		f, u := s.falcon.Stats(), s.underlay.Stats()
		if f.TimeoutRetransmits+f.EarlyRetransmits != 0 || u[underlay.Parked] != 0 || u[underlay.DropParkFull] != 0 {
			t.Errorf("shard %d: %d+%d retransmissions, %d frames parked, %d dropped", i, f.TimeoutRetransmits, f.EarlyRetransmits, u[underlay.Parked], u[underlay.DropParkFull])
		}
	}
}

// TestUnassignedFunctions checks that a PF without a tenant is disabled, and that VFs that are not
// enabled take no memory and are refused.
func TestUnassignedFunctions(t *testing.T) {
	c, err := config.Parse([]byte("nic: {host: 9}\nuplink: {backend: memory, address: 10.0.0.9/24}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, shards := newNIC(t, c, 1)
	s := shards[0]
	n := s.funcs
	if n.there.len() != 1 {
		t.Fatalf("%d functions", n.there.len())
	}
	for vf, want := range map[uint32]abi.Status{1: abi.StatusDenied, 4: abi.StatusDenied, 5: abi.StatusNotFound, 4095: abi.StatusNotFound} {
		if _, st, _ := s.funcs.choose(vf, "", queues.Peer{}); st != want {
			t.Errorf("VF %d: %s, want %s", vf, st, want)
		}
	}
	for f := range n.there.all() {
		if f.Lifecycle.State() != abi.StateDisabled || f.Attach(&guest.Binding{}) != abi.StatusDenied {
			t.Errorf("%s in %s", f.ID, f.Lifecycle.State())
		}
		if f.Registers().Write(0, abi.RegControl, 4, uint64(abi.ControlReset)) != abi.StatusDenied {
			t.Errorf("%s was reset out of DISABLED", f.ID)
		}
	}
}
