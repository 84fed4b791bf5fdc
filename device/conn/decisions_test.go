package conn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestADriverGetsThePeersReasonOfARejection: a driver gets the peer's own reason of a rejection, or
// a status for the NICs' reason.
func TestADriverGetsThePeersReasonOfARejection(t *testing.T) {
	for reason, want := range map[cm.Reason]uint32{
		cm.ReasonConsumer: 42, cm.ReasonNoListener: uint32(abi.StatusRefused), cm.ReasonTimeout: uint32(abi.StatusTimeout),
	} {
		_, a, f := newFunction(t, true)
		f.connector.Decide(1, decision(f, request(f, 5, 100, nil)))
		f.connector.Decide(2, decision(f, &cm.Output{Kind: cm.OutRejected, ID: 5, Function: f.number(), Reason: reason, Consumer: 42}))
		if len(a.events) != 2 || a.events[1].Status != want {
			t.Errorf("%v: %+v", reason, a.events)
		}
	}
}

// TestEachEndOfAConnectionIsAnEvent: each end of a driver's connection becomes an event with a
// status, and the connection is forgotten.
func TestEachEndOfAConnectionIsAnEvent(t *testing.T) {
	for kind, want := range map[cm.OutputKind]abi.AsyncEvent{
		cm.OutEstablished:  {Type: abi.EventEstablished},
		cm.OutRejected:     {Type: abi.EventRejected, Status: 42},
		cm.OutDisconnected: {Type: abi.EventDisconnected, Status: uint32(abi.StatusRefused)},
		cm.OutUnreachable:  {Type: abi.EventUnreachable, Status: uint32(abi.StatusRefused)},
	} {
		_, a, f := newFunction(t, true)
		f.connector.Decide(1, decision(f, request(f, 5, 100, nil)))
		f.connector.Decide(2, decision(f, &cm.Output{Kind: kind, ID: 5, Function: f.number(), Reason: cm.ReasonConsumer, Consumer: 42}))
		if len(a.events) != 2 || a.events[0].Type != abi.EventConnectRequest || a.events[0].PeerQPN != 9 {
			t.Fatalf("%v: %+v", kind, a.events)
		}
		if e := a.events[1]; e.Type != want.Type || e.Status != want.Status || e.Number != 5 {
			t.Errorf("%v: %+v", kind, e)
		}
		if left := len(f.IDs()); (left == 1) != (kind == cm.OutEstablished) {
			t.Errorf("%v: %d connections known", kind, left)
		}
	}
}

// TestADriverThatIsBehindGetsNoConnections: a driver that does not take its events gets no
// connections, neither from a peer nor by its own request. (DEV-211)
func TestADriverThatIsBehindGetsNoConnections(t *testing.T) {
	_, a, f := newFunction(t, true)
	a.take()
	a.behind = true
	f.connector.Decide(1, decision(f, request(f, 5, 100, nil)))
	if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 {
		t.Errorf("%v, events %+v", got, a.events)
	}
	a.behind = false
	f.connector.Decide(1, decision(f, request(f, 6, 100, nil)))
	if got := a.take(); len(got) != 0 || len(a.events) != 1 {
		t.Errorf("%v, events %+v", got, a.events)
	}
}

// TestADecisionEndsNoNIC checks that a decision about another NIC's connection that makes its
// handling panic costs that NIC its link, and releases the keys. Later decisions are carried out. A
// panic because of a function of this NIC goes on. No such decision is known: this one has no
// parameters.
func TestADecisionEndsNoNIC(t *testing.T) {
	_, a, f := newFunction(t, true)
	bad := decision(f, &cm.Output{Kind: cm.OutOpen, ID: 5, Function: f.number(), Peer: 1})
	keys := new(released)
	bad.Keys = keys
	f.connector.Decide(1, bad)
	if got := a.take(); !slices.Equal(got, []string{fmt.Sprint("fault of ", bad.Peer)}) || *keys != 1 {
		t.Errorf("%v, keys released %d times", got, *keys)
	}
	f.connector.Decide(2, decision(f, request(f, 6, 100, nil)))
	if len(a.events) != 1 {
		t.Errorf("%d events", len(a.events))
	}
	defer func() {
		if recover() == nil {
			t.Error("nobody hears of a fault of this NIC")
		}
	}()
	bad.Peer = cm.Self
	f.connector.Decide(3, bad)
}

// TestAConnectionIsNotOpenedAfterItsQueuePairHasEnded: when a driver resets a queue pair while its
// connection is made, the queue pair does not get that connection, also if it is in INIT again when
// the connection manager's decision to open it comes.
func TestAConnectionIsNotOpenedAfterItsQueuePairHasEnded(t *testing.T) {
	const id = 5
	disconnect := fmt.Sprint("disconnect ", id)
	for _, x := range []struct {
		name          string
		before, after bool // the answer; the reset comes then
		want          []string
	}{
		{"no reset", false, false, []string{"connect"}},
		{"before the answer", true, false, []string{"connect", disconnect, disconnect}},
		{"after the answer", false, true, []string{"connect", disconnect, disconnect}},
	} {
		s, a, f := newFunction(t, true)
		domain, st := f.verbs.OpenXRCD()
		if st != abi.StatusOK {
			t.Fatal(st)
		}
		qpn, st := f.verbs.CreateQP(&abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: domain})
		if st != abi.StatusOK {
			t.Fatal(st)
		}
		become := func(states ...abi.QPState) {
			for _, to := range states {
				if st := f.verbs.ModifyQP(1, &abi.ModifyQP{QPN: qpn, Mask: abi.QPAttrState, State: to}); st != abi.StatusOK {
					t.Fatal(st)
				}
			}
		}
		reset := func() {
			become(abi.QPStateReset)
			f.EndQP(1, qpn)
			become(abi.QPStateInit)
		}
		become(abi.QPStateInit)
		if _, st := f.Commands(1, a.later).CMConnect(&abi.CMConnect{QPN: qpn, Service: 100}); st != abi.StatusPending {
			t.Fatal(st)
		}
		if x.before {
			reset()
		}
		a.answer(f, id, nil)
		if x.after {
			reset()
		}
		cid, err := s.cids.Alloc(f.number())
		if err != nil {
			t.Fatal(err)
		}
		f.connector.Decide(2, decision(f, &cm.Output{Kind: cm.OutOpen, ID: id, Function: f.number(), Params: &cm.Params{
			ID: id, Function: f.number(), QPN: qpn, LocalCID: cid, RemoteCID: cid, MTU: 1024 + headers, Ordered: true,
		}}))
		if got := a.take(); !slices.Equal(got, x.want) {
			t.Errorf("%s: asked %v, want %v", x.name, got, x.want)
		}
		if is := f.verbs.QP(qpn).Connected(); is == (x.before || x.after) {
			t.Errorf("%s: connected %v", x.name, is)
		}
	}
}
