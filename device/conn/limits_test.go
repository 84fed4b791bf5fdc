package conn

import (
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestServiceLimits: a driver can use services up to the first one reserved for the NICs. Private
// data may be as long as a message can hold.
func TestServiceLimits(t *testing.T) {
	_, a, f := newFunction(t, true)
	c := f.Commands(1, a.later)
	l, u := c.CMListen(firstReserved-1), c.CMUnlisten(firstReserved-1)
	if l != abi.StatusPending || u != abi.StatusPending {
		t.Errorf("the last of drivers: %s, %s", l, u)
	}
	for n, want := range map[uint16]abi.Status{
		abi.PrivateMax: abi.StatusMemoryFault, abi.PrivateMax + 1: abi.StatusTooLarge,
	} {
		if st := c.CMReject(&abi.CMReject{CMID: 5, PrivLen: n}); st != want { // there is no memory
			t.Errorf("%d bytes: %s, want %s", n, st, want)
		}
	}
}

// TestListeners: a driver may listen on its full number of services, in addition to those of the
// NICs.
func TestListeners(t *testing.T) {
	s := newSides(t)[0]
	fn := function(1, 1)
	s.Take(s.now, &Request{Kind: Begin, Function: fn, Epoch: 1})
	for i := range uint64(driverListeners + 1) {
		s.answers = nil
		s.Take(s.now, &Request{Kind: Listen, Function: fn, Service: i, Question: 1})
		if len(s.answers) != 1 {
			t.Fatalf("listener %d: %+v", i, s.answers)
		}
		err := s.answers[0].Err
		if (err == nil) != (i < driverListeners) || err != nil && !errors.Is(err, cm.ErrLimit) {
			t.Fatalf("listener %d: %v", i, err)
		}
	}
}

// TestQuota: a function may have two connections for each queue pair and address handle, and those
// that others open to it.
func TestQuota(t *testing.T) {
	_, a, f := newFunction(t, true)
	l := verbs.Limits{Links: 1000}
	l.Objects[abi.ObjectQP], l.Objects[abi.ObjectAH] = 10, 7
	f.SetLimits(&l)
	if got := a.take(); !slices.Equal(got, []string{"quota 1034"}) {
		t.Errorf("%v", got)
	}
}

// TestRewiredInTime: failed attempts are repeated when their time has come, in order; those of
// queue pairs that have ended are not.
func TestRewiredInTime(t *testing.T) {
	_, a, f := newFunction(t, true)
	set := f.set
	for i, now := range []falcon.Time{5, 6, 6, 9} {
		w := &wiring{f: f, wireKey: wireKey{qpn: uint32(i)}, id: 3, gone: true}
		if w.later(now); w.id != 0 {
			t.Error("the attempt goes on")
		}
	}
	for _, c := range []struct {
		now  falcon.Time
		left int
		next falcon.Time
	}{{wireRetry + 4, 4, wireRetry + 5}, {wireRetry + 5, 3, wireRetry + 6}, {wireRetry + 6, 1, wireRetry + 9}} {
		if set.Advance(c.now); len(set.rewire) != c.left || set.Deadline() != c.next {
			t.Errorf("at %d: %d are left, the next at %d", c.now, len(set.rewire), set.Deadline())
		}
	}
	if got := a.take(); len(got) != 0 {
		t.Errorf("asked: %v", got)
	}
}

// TestAttemptEnds: the result of an attempt affects only its own queue pair: a failed attempt is
// repeated, one that led to a connection is finished, and the end of another attempt has no effect.
func TestAttemptEnds(t *testing.T) {
	const qpn, id = 3, 5
	for name, tc := range map[string]struct {
		kind        cm.OutputKind
		id          uint32 // that ended
		again, over bool
		held        int
	}{
		"refused":           {cm.OutRejected, id, true, false, 1},
		"not reached":       {cm.OutUnreachable, id, true, false, 1},
		"established":       {cm.OutEstablished, id, false, true, 2},
		"disconnected":      {cm.OutDisconnected, id, false, true, 1},
		"another's refused": {cm.OutRejected, id + 1, false, false, 1},
		"a third's":         {cm.OutRejected, id + 7, false, false, 2},
	} {
		_, a, f := newFunction(t, true)
		w := &wiring{f: f, wireKey: wireKey{qpn: qpn}, id: id}
		f.wirings[qpn] = w
		f.conns[id], f.conns[id+1] = &connection{wired: true}, &connection{wired: true}
		f.bind(id, qpn)
		f.bind(id+1, qpn)
		f.held[wireKey{qpn: 8}], f.held[wireKey{qpn: 9}] = held{id: id}, held{id: id + 1}
		f.set.Order(1, order(f, &cm.Output{Kind: tc.kind, ID: tc.id, Function: f.number()}))
		if again := len(f.set.rewire) == 1 && w.id == 0; again != tc.again || w.gone != tc.over || len(a.events) != 0 {
			t.Errorf("%s: again %t, over %t, %d events", name, again, w.gone, len(a.events))
		}
		if wirings, n := f.Waiting(); wirings == 1 == tc.over || n != tc.held {
			t.Errorf("%s: %d wait for a connection, %d requests are held", name, wirings, n)
		}
	}
}

// TestRejectedByTheNIC: a driver gets the peer's own reason of a rejection, or a status for the
// NICs' reason.
func TestRejectedByTheNIC(t *testing.T) {
	for reason, want := range map[cm.Reason]uint32{
		cm.ReasonConsumer: 42, cm.ReasonNoListener: uint32(abi.StatusRefused), cm.ReasonTimeout: uint32(abi.StatusTimeout),
	} {
		_, a, f := newFunction(t, true)
		f.set.Order(1, order(f, request(f, 5, 100, nil)))
		f.set.Order(2, order(f, &cm.Output{Kind: cm.OutRejected, ID: 5, Function: f.number(), Reason: reason, Consumer: 42}))
		if len(a.events) != 2 || a.events[1].Status != want {
			t.Errorf("%v: %+v", reason, a.events)
		}
	}
}

// TestBound: a connection belongs to one queue pair at a time.
func TestBound(t *testing.T) {
	_, _, f := newFunction(t, true)
	for id := range uint32(3) {
		f.conns[id] = &connection{}
	}
	has := func(what string, qps int, pending ...bool) {
		t.Helper()
		for qpn, want := range pending {
			if f.pending(uint32(qpn)) != want {
				t.Errorf("%s: queue pair %d is being connected: %t", what, qpn, !want)
			}
		}
		if f.QPs() != qps {
			t.Errorf("%s: %d queue pairs", what, f.QPs())
		}
	}
	has("nothing", 0, false, false, false)
	f.bind(0, 1)
	f.bind(1, 1)
	f.bind(2, 2)
	has("three", 2, false, true, true)
	f.bind(0, 1)
	f.bind(0, 2)
	has("one moves", 2, false, true, true)
	f.forget(1)
	has("one ends", 1, false, false, true)
	f.forget(2)
	f.forget(2)
	has("another", 1, false, false, true)
	f.unbind(0)
	f.unbind(77)
	has("all", 0, false, false, false)
}

// TestPartingEndsBelow: if the transport closes a parting connection, it is over, and its user is
// not told again.
func TestPartingEndsBelow(t *testing.T) {
	for _, why := range []cm.Reason{cm.ReasonLocal, cm.ReasonDisconnect} {
		s := newShard(t, 1)
		u := &sitter{}
		_, id, err := s.open(u, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.over.Push(1, 1, 100); err != nil {
			t.Fatal(err)
		}
		s.Close(2, id, why)
		told := u.forgotten
		u.over.Close(3)
		if s.EndPartings(3); u.forgotten != told {
			t.Errorf("%s: its user is told once more", why)
		}
		if list := s.news(3); len(list) != 0 {
			t.Errorf("%s: the connection manager is told what it knows: %v", why, list)
		}
		s.empty()
	}
}
