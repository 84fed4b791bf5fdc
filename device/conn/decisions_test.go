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
