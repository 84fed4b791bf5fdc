package conn

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestFailedAttemptsAreRepeatedInOrder: failed attempts are repeated when their time has come, in
// order; those of queue pairs that have ended are not.
func TestFailedAttemptsAreRepeatedInOrder(t *testing.T) {
	_, a, f := newFunction(t, true)
	set := f.connector
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

// TestAnAttemptEndsForItsOwnQueuePair: the result of an attempt affects only its own queue pair: a
// failed attempt is repeated, one that led to a connection is finished, and the end of another
// attempt has no effect.
func TestAnAttemptEndsForItsOwnQueuePair(t *testing.T) {
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
		f.connector.Decide(1, decision(f, &cm.Output{Kind: tc.kind, ID: tc.id, Function: f.number()}))
		if again := len(f.connector.rewire) == 1 && w.id == 0; again != tc.again || w.gone != tc.over || len(a.events) != 0 {
			t.Errorf("%s: again %t, over %t, %d events", name, again, w.gone, len(a.events))
		}
		if wirings, n := f.Waiting(); wirings == 1 == tc.over || n != tc.held {
			t.Errorf("%s: %d wait for a connection, %d requests are held", name, wirings, n)
		}
	}
}

// TestAWrongRequestOfANICIsRejected: a NIC's request for a queue pair that does not exist, or in an
// unknown form, is rejected, and the driver gets no event.
func TestAWrongRequestOfANICIsRejected(t *testing.T) {
	for _, tc := range []struct {
		service uint64
		private []byte
	}{
		{serviceWire, binary.BigEndian.AppendUint32(nil, 0x1234)},
		{serviceWire, nil},
		{serviceWire, make([]byte, 5)},
		{serviceUD, nil},
		{serviceUD, make([]byte, 3)},
		{serviceUD + 1, make([]byte, 4)},
	} {
		_, a, f := newFunction(t, true)
		f.connector.Decide(1, decision(f, request(f, 5, tc.service, tc.private)))
		if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 || len(f.IDs()) != 0 {
			t.Errorf("%#x %x: %v, %d events, known %v", tc.service, tc.private, got, len(a.events), f.IDs())
		}
	}
}

// TestACIDThatCannotBeUsedIsReleased: a queue pair that is its own peer requests a CID. If the
// queue pair has ended when the CID comes, or cannot be opened, the CID is released. If there is no
// CID, nothing of the attempt remains.
func TestACIDThatCannotBeUsedIsReleased(t *testing.T) {
	for _, x := range []struct {
		name  string
		ended bool
		err   error
		want  []string
	}{
		{"ended", true, nil, []string{"take", "give 77"}},
		{"another shard's CID", false, nil, []string{"take", "give 77"}},
		{"no CID", false, cm.ErrNotFound, []string{"take"}},
		{"neither", true, cm.ErrNotFound, []string{"take"}},
	} {
		_, a, f := newFunction(t, true)
		q := &verbs.QP{}
		f.wireSelf(q)
		if !f.pending(q.Number()) {
			t.Errorf("%s: nothing is asked", x.name)
		}
		if x.ended {
			f.EndQP(2, q.Number())
		}
		a.answer(f, 77, x.err)
		if got := a.take(); !slices.Equal(got, x.want) || f.pending(q.Number()) {
			t.Errorf("%s: asked %v, want %v; still pending: %t", x.name, got, x.want, f.pending(q.Number()))
		}
	}
}
