package conn

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// shard is a table with everything that it uses.
type shard struct {
	*Table
	t      *testing.T
	cids   *CIDs
	falcon *falcon.Engine
	owner  *Owner
	keys   int // in use
	noKeys error
	nextID uint32
}

func (s *shard) Protect(*cm.Params, Receiving) (Keys, error) {
	if s.noKeys != nil {
		return nil, s.noKeys
	}
	s.keys++
	return s, nil
}

func (s *shard) Release() { s.keys-- }

// Fill implements falcon.ULP.
func (s *shard) Fill(*falcon.Conn, falcon.TxnKind, uint64, []byte) (int, error) { return 0, nil }

func newShard(t *testing.T, index int) *shard {
	s := &shard{t: t, cids: NewCIDs(index, 16)}
	s.falcon = falcon.NewEngine(falcon.Config{Profile: falcon.Software(), MaxConns: 16}, s)
	var free credit.Cost
	for i := range free {
		free[i] = credit.Unlimited
	}
	s.owner = &Owner{Function: &pfvf.Function{ID: 1<<16 | 1, Credits: credit.New(nil, free)}, Describe: func() string { return "f" }}
	s.cids.SetQuota(uint32(s.owner.ID), 16)
	s.Table = NewTable(TableConfig{
		Shard: index, Slots: 16, Transport: s.falcon, Loopbacks: local.New(nil), Keys: s, Credits: free,
		Log: func(falcon.Time, slog.Level, string, ...any) {},
	})
	return s
}

// sitter is a user whose answers are set by the test.
type sitter struct {
	refuses, parts        error
	has                   bool
	peerLeaves, forgotten int
	over                  rof.Carrier
}

func (u *sitter) Connect(_ falcon.Time, c rof.Carrier, _ *cm.Params) error {
	u.over, u.has = c, u.refuses == nil
	return u.refuses
}
func (u *sitter) Owns() bool                  { return u.has }
func (u *sitter) Parts() bool                 { return u.parts == nil }
func (u *sitter) PeerLeaves()                 { u.peerLeaves++ }
func (u *sitter) Disconnect(falcon.Time)      { u.forgotten++; u.has = false }
func (u *sitter) GiveUp() falcon.Time         { return 0 }
func (u *sitter) Explain([]byte, bool) string { return "sitter" }

// open opens a connection with another NIC, or one inside.
func (s *shard) open(u *sitter, inside bool) (cid, id uint32, err error) {
	s.t.Helper()
	cid, err = s.cids.Alloc(uint32(s.owner.ID))
	if err != nil {
		s.t.Fatal(err)
	}
	s.nextID++
	o := &Opening{
		Params: &cm.Params{ID: s.nextID, LocalCID: cid, RemoteCID: cid, MTU: 1024 + headers, Peer: 2, Function: uint32(s.owner.ID)},
		Owner:  s.owner, User: u, Underlay: underlayOf(2),
		Inner: underlay.Inner{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")},
	}
	if inside {
		o.Underlay = netip.Addr{}
	}
	return cid, s.nextID, s.Open(1, o)
}

// news passes the transport's events to the table, and returns what ended.
func (s *shard) news(now falcon.Time) (list []Ended) {
	for ev := (falcon.Event{}); s.falcon.Next(&ev); {
		s.HandleEvent(now, &ev)
	}
	for e, ok := s.NextEnded(); ok; e, ok = s.NextEnded() {
		list = append(list, e)
	}
	return list
}

// empty checks that nothing is left of any connection.
func (s *shard) empty() {
	s.t.Helper()
	s.Each(func(c *Slot) { s.t.Errorf("connection %#x is left", c.CID) })
	if s.keys != 0 || s.Named() != 0 || s.falcon.Stats().Conns != 0 || s.Deadline() != vtime.Never {
		s.t.Errorf("%d keys in use, %d named, %d of the transport, deadline %d", s.keys, s.Named(), s.falcon.Stats().Conns, s.Deadline())
	}
}

// TestTableFinds: an open connection is found by its CID, by its id and by the transport's end, in
// any shard, and not by a similar CID.
func TestTableFinds(t *testing.T) {
	for _, index := range []int{0, 1, MaxShards - 1} {
		for _, inside := range []bool{false, true} {
			s := newShard(t, index)
			cid, id, err := s.open(&sitter{}, inside)
			if err != nil {
				t.Fatal(err)
			}
			c := s.Find(cid)
			if c == nil || c.CID != cid || s.ByID(id) != c || (s.FindSealed(cid) == c) == inside || c.Explain(nil, true) != "sitter" {
				t.Fatalf("shard %d, inside %t: %+v", index, inside, c)
			}
			if !inside && (s.Of(c.Conn) != c || c.Underlay != underlayOf(2) || c.Keys == nil) {
				t.Errorf("shard %d: %+v", index, c)
			}
			for _, other := range []uint32{cid ^ 1<<indexBits, cid ^ 1<<(indexBits+generationBits), cid + 1, 15, 16, 1<<24 - 1} {
				if s.Find(other) != nil || s.FindSealed(other) != nil {
					t.Errorf("shard %d: %#x is not %#x", index, other, cid)
				}
			}
			s.Close(2, id, cm.ReasonFunctionGone)
			s.Close(2, id, cm.ReasonFunctionGone)
			if s.Find(cid) != nil || s.ByID(id) != nil || len(s.news(2)) != 0 {
				t.Errorf("shard %d: found after its end", index)
			}
			s.empty()
		}
	}
}

// TestOpenFails: nothing is left of a connection that cannot be opened.
func TestOpenFails(t *testing.T) {
	for _, inside := range []bool{false, true} {
		s := newShard(t, 2)
		refusal := errors.New("no")
		u := &sitter{refuses: refusal}
		if _, _, err := s.open(u, inside); !errors.Is(err, refusal) {
			t.Errorf("inside %t: %v", inside, err)
		}
		if !inside {
			s.noKeys = refusal
			if _, _, err := s.open(&sitter{}, inside); !errors.Is(err, refusal) {
				t.Error(err)
			}
		}
		if list := s.news(2); len(list) != 0 {
			t.Errorf("inside %t: told as ended: %v", inside, list)
		}
		s.empty()
	}
	s := newShard(t, 2)
	cid, _, err := s.open(&sitter{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, cid := range []uint32{cid, NewCIDs(3, 16).cid(5)} { // taken; another shard's
		if err := s.Open(1, &Opening{Params: &cm.Params{LocalCID: cid}, Owner: s.owner, User: &sitter{}}); err == nil {
			t.Errorf("opened at %#x", cid)
		}
	}
}

// TestEnded: a connection that the transport ends is reported once, with its function, id and CID.
func TestEnded(t *testing.T) {
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

// TestDrain: a connection that its driver disconnects ends when no work is in flight, at the latest
// after a while. A second disconnect does not wait.
func TestDrain(t *testing.T) {
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

// TestParting: the side that ends a connection releases its user at once and acknowledges for a
// while. The peer's side keeps the connection until no work is in flight. A new connection in the
// slot of a parting one ends it, and so does a reset.
func TestParting(t *testing.T) {
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

// TestNoParting: connections of datagrams do not part, nor does any connection when keys are lost
// or a function is reset.
func TestNoParting(t *testing.T) {
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
