package conn

import (
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestAnEndedConnectionIsReportedOnce: a connection that the transport ends is reported once, with
// its function, id and CID.
func TestAnEndedConnectionIsReportedOnce(t *testing.T) {
	for _, inside := range []bool{false, true} {
		s := newShard(t, 1)
		u := &sitter{}
		cid, id, err := s.open(u, inside)
		if err != nil {
			t.Fatal(err)
		}
		u.over.Close(2)
		if list := s.news(2); !slices.Equal(list, []Ended{{uint32(s.owner.ID), id, cid}}) {
			t.Errorf("inside %t: %v", inside, list)
		}
		s.Close(3, id, cm.ReasonLocal)
		if u.forgotten != 0 {
			t.Error("its user ended it, and is told")
		}
		s.empty()
	}
}

// TestADisconnectWaitsForWorkInFlight: a connection that its driver disconnects ends when no work
// is in flight, at the latest after a while. A second disconnect does not wait.
func TestADisconnectWaitsForWorkInFlight(t *testing.T) {
	for _, busy := range []bool{false, true} {
		s := newShard(t, 1)
		u := &sitter{}
		cid, id, err := s.open(u, false)
		if err != nil {
			t.Fatal(err)
		}
		if busy {
			if err := u.over.Push(1, 1, 100); err != nil {
				t.Fatal(err)
			}
		}
		other := *s.owner
		if s.Drain(2, &other, id) || !s.Drain(2, s.owner, id) || s.Drain(2, s.owner, id) || !s.Draining() {
			t.Fatal("who may drain, and how often")
		}
		want := []Ended{{uint32(s.owner.ID), id, cid}}
		s.news(2)
		s.EndDrains(2)
		if list := s.news(2); slices.Equal(list, want) == busy {
			t.Errorf("busy %t: %v", busy, list)
		}
		at := s.Deadline()
		if at != 2+DrainMost {
			t.Errorf("deadline %d", at)
		}
		s.EndDrains(at)
		if list := s.news(at); busy && !slices.Equal(list, want) {
			t.Errorf("after a while: %v", list)
		}
		s.Close(at, id, cm.ReasonFunctionGone)
		s.EndDrains(at)
		s.news(at)
		s.empty()
	}
}

// TestAPartingConnectionAcknowledgesRepeats: the side that ends a connection releases its user at
// once and acknowledges for a while. The peer's side keeps the connection until no work is in
// flight. A new connection in the slot of a parting one ends it, and so does a reset.
func TestAPartingConnectionAcknowledgesRepeats(t *testing.T) {
	for _, why := range []cm.Reason{cm.ReasonLocal, cm.ReasonDisconnect} {
		for _, end := range []string{"time", "next", "reset"} {
			s := newShard(t, 1)
			u := &sitter{}
			cid, id, err := s.open(u, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := u.over.Push(1, 1, 100); err != nil {
				t.Fatal(err)
			}
			s.Close(2, id, why)
			if local := why == cm.ReasonLocal; (u.forgotten == 1) != local || (u.peerLeaves == 0) != local {
				t.Errorf("%s: told to disconnect %d times, that the peer leaves %d times", why, u.forgotten, u.peerLeaves)
			}
			if s.FindSealed(cid) == nil || s.ByID(id) != nil || s.Deadline() != 2+PartTime {
				t.Errorf("%s: it does not part", why)
			}
			switch end {
			case "time":
				s.EndPartings(1 + PartTime)
				if s.FindSealed(cid) == nil {
					t.Errorf("%s: ends too soon", why)
				}
				s.EndPartings(2 + PartTime)
			case "next":
				s.cids.Free(cid)
				for next := cid + 1; indexOf(next) != indexOf(cid); {
					if s.FindSealed(cid) == nil {
						t.Fatal("it ended before its slot was taken")
					}
					if next, id, err = s.open(&sitter{}, false); err != nil {
						t.Fatal(err)
					}
					s.Close(3, id, cm.ReasonFunctionGone)
					s.cids.Free(next)
				}
				s.news(3)
				s.EndPartings(3)
			case "reset":
				other := *s.owner
				s.EndPartingsOf(3, &other)
				if s.FindSealed(cid) == nil {
					t.Error("ends with another function")
				}
				s.EndPartingsOf(3, s.owner)
				s.EndPartings(3)
			}
			if list := s.news(4); len(list) != 0 {
				t.Errorf("%s, %s: the connection manager is told what it knows: %v", why, end, list)
			}
			if s.FindSealed(cid) != nil {
				t.Errorf("%s, %s: it is there still", why, end)
			}
			s.empty()
		}
	}
}

// TestOnlyAConnectionThatADriverEndsParts: connections of datagrams do not part, nor does any
// connection when keys are lost or a function is reset.
func TestOnlyAConnectionThatADriverEndsParts(t *testing.T) {
	for _, tc := range []struct {
		why   cm.Reason
		parts error
	}{{cm.ReasonLocal, errors.ErrUnsupported}, {cm.ReasonPeerRestarted, nil}, {cm.ReasonFunctionGone, nil}} {
		s := newShard(t, 1)
		u := &sitter{parts: tc.parts}
		_, id, err := s.open(u, false)
		if err != nil {
			t.Fatal(err)
		}
		s.Close(2, id, tc.why)
		if u.forgotten != 1 {
			t.Errorf("%s: its user is told %d times", tc.why, u.forgotten)
		}
		s.news(2)
		s.empty()
	}
}

// TestAPartingConnectionMayEndInTheTransport: if the transport closes a parting connection, it is
// over, and its user is not told again.
func TestAPartingConnectionMayEndInTheTransport(t *testing.T) {
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
