package conn

import (
	"errors"
	"log/slog"
	"net/netip"
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
	over                  rof.Pipe
}

func (u *sitter) Connect(_ falcon.Time, c rof.Pipe, _ *cm.Params) error {
	u.over, u.has = c, u.refuses == nil
	return u.refuses
}

func (u *sitter) Owns() bool                  { return u.has }
func (u *sitter) Parts() bool                 { return u.parts == nil }
func (u *sitter) PeerLeaves()                 { u.peerLeaves++ }
func (u *sitter) Disconnect(falcon.Time)      { u.forgotten++; u.has = false }
func (u *sitter) GiveUp() falcon.Time         { return 0 }
func (u *sitter) Explain([]byte, bool) string { return "sitter" }
func (u *sitter) Pair() (qpn, peer uint32)    { return 0, 0 }

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
		o.Underlay = netip.AddrPort{}
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

// TestATableFindsOpenConnectionsByCID: an open connection is found by its CID, by its id and by the
// transport's end, in any shard, and not by a similar CID.
func TestATableFindsOpenConnectionsByCID(t *testing.T) {
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

// TestAFailedOpenLeavesNothing: nothing is left of a connection that cannot be opened.
func TestAFailedOpenLeavesNothing(t *testing.T) {
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

// TestNeighbouringFlowLabelsTakeDistantPaths: neighbouring flow labels of one program use all
// paths.
func TestNeighbouringFlowLabelsTakeDistantPaths(t *testing.T) {
	const paths = 8 // docs/wire.md
	used := map[uint32]int{}
	for label := uint32(1); label <= 64; label++ {
		used[FirstPath(label, 0)%paths]++
	}
	for p, n := range used {
		if n > 16 {
			t.Errorf("%d of 64 labels on path %d", n, p)
		}
	}
	if len(used) != paths || FirstPath(0, 77) != 77 {
		t.Errorf("paths used: %v", used)
	}
}

// TestAConnectionHasAShareOfItsFunctionsCredits: without a configured limit, a connection gets a
// part of its function's credits, so that one connection never holds all of them. A function with
// little gives each connection enough for a path. A configured limit is used unchanged.
func TestAConnectionHasAShareOfItsFunctionsCredits(t *testing.T) {
	function := credit.New(nil, credit.Cost{1024, 16384, 1024, 65536, 100, 4000, 16384, 2048})
	got := NewCredits(function, credit.NoLimit()).Limit()
	want := credit.Cost{256, 4096, 256, 16384, 64, 2048, credit.Unlimited, credit.Unlimited}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
	set := credit.NoLimit()
	set[credit.ReqPktTx], set[credit.NetPktRx] = 7, 9
	if got := NewCredits(function, set).Limit(); got[credit.ReqPktTx] != 7 || got[credit.NetPktRx] != 9 || got[credit.ReqBufTx] != 4096 {
		t.Errorf("%v where some is set", got)
	}
	free := credit.New(nil, credit.NoLimit())
	if got := NewCredits(free, credit.NoLimit()).Limit(); got != credit.NoLimit() {
		t.Errorf("%v of a function without a limit", got)
	}
	one := credit.Cost{credit.ReqPktTx: 1}
	first, taken := NewCredits(function, credit.NoLimit()), 0
	for first.Take(&one) {
		taken++
	}
	if taken != 256 || !NewCredits(function, credit.NoLimit()).Take(&one) {
		t.Errorf("one connection took %d, and nothing is left for another", taken)
	}
}
