package shard

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// drivers sets up one driver per NIC, not connected.
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
		if n := v.core(s).Manager.CIDsInUse(); n != 0 || s.falcon.table.Named() != 0 || s.txSAs.Len() > 1 || s.falcon.engine.Stats().Conns != 0 || len(v.core(s).Manager.CM.Connections()) != 0 {
			t.Errorf("shard %d: %d CIDs, %d open, %d transmit SAs, %d transport connections, %d of the manager",
				i, n, s.falcon.table.Named(), s.txSAs.Len(), s.falcon.engine.Stats().Conns, len(v.core(s).Manager.CM.Connections()))
		}
		for f := range s.funcs.members.all() {
			if ids, qps := f.conns.IDs(), f.conns.QPs(); len(ids) != 0 || qps != 0 {
				t.Errorf("%s remembers %d connections of %d queue pairs", f.ID, len(ids), qps)
			}
		}
	}
}

func TestARejectionTellsItsReasonAndFreesTheQP(t *testing.T) {
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

// TestAnEndedConnectionLeavesNothing ends connections in every possible way and checks that nothing is left of
// them. (DEV-903, DEV-905)
func TestAnEndedConnectionLeavesNothing(t *testing.T) {
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

// TestConnectionsSurviveAnOutageOfTheManagersLink checks that established connections survive an outage of the managers' link.
func TestConnectionsSurviveAnOutageOfTheManagersLink(t *testing.T) {
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

// TestConnectionsToOnePeerShareTheirSAs opens several connections one after the other and at the same time, and
// checks how they share CIDs, SAs and slots.
func TestConnectionsToOnePeerShareTheirSAs(t *testing.T) {
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

// TestShortCommandsAreAnsweredBeforeLongOnes posts as many commands as fit, with registrations so large that they take
// several Steps, and checks that all are answered: the short ones first (DEV-507).
func TestShortCommandsAreAnsweredBeforeLongOnes(t *testing.T) {
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

// TestNeighboursAreResolvedBeforeTheFirstBurst checks that neighbours are resolved while the
// managers talk, so that the first burst of a new connection is neither parked nor sent twice.
func TestNeighboursAreResolvedBeforeTheFirstBurst(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 1<<20, b, 1<<20)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	for i, s := range v.all() {
		f, u := s.falcon.engine.Stats(), s.uplink.underlay.Stats()
		if f.TimeoutRetransmits+f.EarlyRetransmits != 0 || u[underlay.Parked] != 0 || u[underlay.DropParkFull] != 0 {
			t.Errorf("shard %d: %d+%d retransmissions, %d frames parked, %d dropped", i, f.TimeoutRetransmits, f.EarlyRetransmits, u[underlay.Parked], u[underlay.DropParkFull])
		}
	}
}

// TestRoutesNameThePortOrPeer checks that routes name the port or the peer that has an address, and
// whether the way to the peer is sealed.
func TestRoutesNameThePortOrPeer(t *testing.T) {
	v := newPortWorld(t, 1)
	kinds := map[string]int{}
	for _, r := range v.cores[0].Routes() {
		kinds[r.Kind]++
		if named := r.Port != ""; named != (r.Kind == "port") {
			t.Errorf("%+v names a port: %v", r, named)
		}
		if named := r.Peer != 0; named != (r.Kind == "peer") {
			t.Errorf("%+v names a peer: %v", r, named)
		}
	}
	var list []control.Route
	for _, s := range v.nics[0] {
		list = append(list, s.View().Peers.Tunnels()...)
	}
	for _, r := range list {
		if !r.Sealed || r.PeerName != "2" {
			t.Errorf("tunnel %+v", r)
		}
	}
	if len(list) != 2 { // in both tenants
		t.Errorf("tunnels %+v", list)
	}
	if kinds["port"] == 0 || kinds["peer"] == 0 {
		t.Errorf("routes by kind: %v", kinds)
	}
}

// TestRefusedWiringIsRepeated checks that a refused connection attempt is repeated, and that a
// connection that ended is not made again.
func TestRefusedWiringIsRepeated(t *testing.T) {
	for _, tc := range []struct {
		kind  cm.OutputKind
		again int
	}{{cm.OutRejected, 1}, {cm.OutDisconnected, 0}} {
		v := newVirtual(t, 1, wire100us)
		a, b := drivers(v)
		a.toRTR(b.qpn, b.fn.GID())
		b.toRTR(a.qpn, a.fn.GID())
		f := a.fn
		if n, _ := f.conns.Waiting(); n == 0 {
			f = b.fn // the one with the smaller GID asks
		}
		ids := f.conns.IDs()
		if len(ids) != 1 {
			t.Fatalf("%d attempts", len(ids))
		}
		later := f.fs.falcon.conns.Deadline()
		for epoch := range uint32(10) { // in one of them it is in service
			f.fs.falcon.conns.Decide(v.now, &conn.Decision{Output: cm.Output{Kind: tc.kind, ID: ids[0], Function: uint32(f.ID)}, Epoch: epoch})
		}
		n, _ := f.conns.Waiting()
		if again := f.fs.falcon.conns.Deadline() < later; n != tc.again || again != (tc.again == 1) {
			t.Errorf("%v: %d wirings, want %d; made again: %t", tc.kind, n, tc.again, again)
		}
	}
}

// TestRequestsUnderWayCompleteBeforeADisconnect checks that requests that the transport took before its driver disconnects
// complete, and that the peer is told. (DEV-912)
func TestRequestsUnderWayCompleteBeforeADisconnect(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	id, size := a.connID(), 100_000
	for i := range 3 * size {
		a.data()[i] = byte(i>>8 ^ i)
	}
	for i := range 3 {
		a.send(abi.OpWrite, i*size, size, b, i*size)
	}
	sent := v.shards[0].falcon.engine.Stats().DataSent
	v.until("first packets", func() bool { return v.shards[0].falcon.engine.Stats().DataSent > sent+20 })
	a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
	whole := 0
	for i := range 3 {
		switch cqe := a.done(); {
		case cqe.Status == abi.WCSuccess && whole == i:
			whole++
		case cqe.Status != abi.WCWRFlushErr:
			t.Errorf("request %d: %s", i, cqe.Status)
		}
	}
	if whole == 0 {
		t.Error("nothing of what was under way completed")
	}
	if !bytes.Equal(b.data()[:whole*size], a.data()[:whole*size]) {
		t.Error("completed, but not there")
	}
	b.event(abi.EventDisconnected)
	a.event(abi.EventDisconnected)
	settled(t, v)
	for nic, want := range []falcon.CloseReason{falcon.CloseLocal, falcon.ClosePeer} {
		if n := v.shards[nic].falcon.engine.Stats().ConnsClosed; n[want] != 1 {
			t.Errorf("NIC %d: connections by why they ended: %v, want one %s", nic, n, want)
		}
	}
}

// TestDisconnectIsBounded checks that a peer that is never ready delays a disconnect only for a
// short time, and not at all if the driver asks twice. (DEV-912)
func TestDisconnectIsBounded(t *testing.T) {
	for _, twice := range []bool{false, true} {
		v := newVirtual(t, 1, wire100us)
		a, b := pair(v)
		id := a.connID()
		a.send(abi.OpSend, 0, 100, b, 0) // there is no receive for it
		v.until("a refusal", func() bool { return v.shards[0].falcon.engine.Stats().NacksReceived > 0 })
		start := v.now
		a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
		limit := conn.DrainMost + conn.DrainMost/10
		if twice {
			a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
			limit = conn.DrainMost / 10
		}
		if cqe := a.done(); cqe.Status != abi.WCWRFlushErr {
			t.Errorf("twice %v: %s", twice, cqe.Status)
		}
		if took := v.now - start; took > limit {
			t.Errorf("twice %v: took %d µs", twice, took/1000)
		}
		b.event(abi.EventDisconnected)
		settled(t, v)
	}
}

// TestReceivedRequestsCompleteWhenThePeerEnds checks that requests that the peer's driver has
// received complete with success, although the acknowledgements were lost and the peer ends the
// connection right away, and that others are flushed. It tests each way to end a connection, for
// connections made by connection management and for wired queue pairs. (DEV-905, DEV-912)
func TestReceivedRequestsCompleteWhenThePeerEnds(t *testing.T) {
	for name, end := range map[string]func(b *driver, id uint32){
		"CMDisconnect":   func(b *driver, id uint32) { b.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id}) },
		"DestroyQP":      func(b *driver, _ uint32) { b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn}) },
		"ModifyQP RESET": func(b *driver, _ uint32) { b.state(abi.QPStateReset) },
		"ModifyQP ERR":   func(b *driver, _ uint32) { b.state(abi.QPStateErr) },
	} {
		for _, wired := range []bool{false, true} {
			if wired && name == "CMDisconnect" {
				continue
			}
			t.Run(name+map[bool]string{true: ", wired"}[wired], func(t *testing.T) {
				v := newVirtual(t, 1, wire100us)
				var a, b *driver
				var id uint32
				if wired {
					a, b = drivers(v)
					wiredPair(v, a, b, false)
				} else {
					a, b = pair(v)
					id = b.connID()
				}
				v.idle(10e6)
				v.tap = func(from int, frame []byte) []byte {
					if from == 1 {
						return nil
					}
					return frame
				}
				const delivered = 4
				for i := range delivered {
					b.receive(4096*i, 4096)
					a.send(abi.OpSend, 0, 100, b, 0)
				}
				for i := range delivered {
					if cqe := b.done(); cqe.Status != abi.WCSuccess {
						t.Fatalf("receive %d: %s", i, cqe.Status)
					}
				}
				a.send(abi.OpSend, 0, 100, b, 0) // there is no receive for it
				v.idle(1e6)
				end(b, id)
				v.tap = nil
				start := v.now
				for i := range delivered {
					if cqe := a.done(); cqe.Status != abi.WCSuccess {
						t.Errorf("request %d: %s", i, cqe.Status)
					}
				}
				want := abi.WCWRFlushErr
				if wired {
					want = abi.WCRetryExcErr
				}
				if cqe := a.done(); cqe.Status != want {
					t.Errorf("what was not received: %s, want %s", cqe.Status, want)
				}
				if took := v.now - start; took > 2*conn.PartTime {
					t.Errorf("took %d ms", took/1e6)
				}
				if !wired {
					a.event(abi.EventDisconnected)
				}
				settled(t, v)
			})
		}
	}
}

// state moves the driver's queue pair to a state.
func (d *driver) state(to abi.QPState) {
	d.v.t.Helper()
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: d.qpn, Mask: abi.QPAttrState, State: to})
}

// TestResetLeavesNoConnection checks that a reset leaves no connection behind, whichever side
// ended it. (DEV-303)
func TestResetLeavesNoConnection(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	b.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: b.connID()})
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	if v.shards[1].falcon.engine.Stats().Conns != 1 {
		t.Fatal("the side that ended it does not wait: the test tests nothing")
	}
	b.write(abi.RegControl, 4, uint64(abi.ControlReset))
	if n := v.shards[1].falcon.engine.Stats().Conns; n != 0 {
		t.Errorf("%d transport connections after the reset", n)
	}
	settled(t, v)
}

// TestModifyQPWithoutAStateEndsNoConnection checks that a ModifyQP without a state in its mask ends
// no connection, whatever its state field holds, and that a refused one ends none either.
func TestModifyQPWithoutAStateEndsNoConnection(t *testing.T) {
	for name, connect := range map[string]func(v *virtual) (a, b *driver){
		"wired": func(v *virtual) (a, b *driver) {
			a, b = drivers(v)
			wiredPair(v, a, b, false)
			return a, b
		},
		"by connection management": pair,
	} {
		t.Run(name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := connect(v)
			for _, state := range []abi.QPState{abi.QPStateReset, abi.QPStateErr} {
				b.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: b.qpn, Mask: abi.QPAttrTimeout, Timeout: 14, State: state})
			}
			refused := &abi.ModifyQP{QPN: b.qpn, Mask: abi.QPAttrState | abi.QPAttrTimeout, Timeout: 99, State: abi.QPStateErr}
			if st, _ := b.command(abi.AdminOpModifyQP, refused); st == abi.StatusOK {
				t.Fatal("a timeout of 99 was taken")
			}
			v.idle(10e6)
			b.receive(0, 4096)
			a.send(abi.OpSend, 0, 100, b, 0)
			if got, sent := b.done().Status, a.done().Status; got != abi.WCSuccess || sent != abi.WCSuccess {
				t.Errorf("received: %s, sent: %s", got, sent)
			}
		})
	}
}

// TestHeldCompletionsComeBeforeTheirQPIsDestroyed checks that completions that a profile holds back
// come before the answer to the command that destroys their queue pair.
func TestHeldCompletionsComeBeforeTheirQPIsDestroyed(t *testing.T) {
	held := uint64(0)
	for seed := range uint64(10) {
		v := newVirtual(t, 40+seed, wire100us)
		a, b := pair(v)
		if err := a.fn.Faults.UseProfile(guest.HostileProfile, seed+1); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			a.send(abi.OpWrite, 0, 64, b, 0)
		}
		end := v.now + 350e3
		v.until("the writes", func() bool { return v.now >= end })
		a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
		for _, ok := a.completion(); ok; _, ok = a.completion() {
		}
		_, _, did := a.fn.Faults.Profile()
		held += did.Holds
		v.idle(1e9)
		if c, ok := a.completion(); ok {
			t.Errorf("seed %d: a completion of a queue pair that is gone: %+v", seed, c)
		}
	}
	if held == 0 {
		t.Error("nothing was held back: the test tests nothing")
	}
}

// TestZeroAndUnlimitedCreditsAreNotShown checks that zeros and unlimited credits are not shown, and
// that counters that the configuration does not limit for a connection are unlimited.
func TestZeroAndUnlimitedCreditsAreNotShown(t *testing.T) {
	var c credit.Cost
	for i := range c {
		c[i] = credit.Unlimited
	}
	c[0], c[1], c[2] = 0, 1, credit.Unlimited-1
	want := map[string]uint32{credit.Counter(1).String(): 1, credit.Counter(2).String(): credit.Unlimited - 1}
	if got := counts(c); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var cfg config.Config
	for i, v := range connectionCredits(&cfg) {
		if v != credit.Unlimited {
			t.Errorf("%s: %d where nothing is set", credit.Counter(i), v)
		}
	}
}
