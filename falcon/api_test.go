package falcon_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestFalconTimeRoundsDownAndWraps(t *testing.T) {
	for ns, want := range map[falcon.Time]uint32{0: 0, 131: 0, 132: 1, 131072: 1000, 562_949_953_421: 0xffffffff, 562_949_953_422: 0} {
		if got := falcon.FalconTime(ns); got != want {
			t.Errorf("FalconTime(%d) = %d, want %d", ns, got, want)
		}
	}
}

func TestOpenRefusesInvalidAndExcessConnections(t *testing.T) {
	e := falcon.NewEngine(falcon.Config{Profile: testProfile(), MaxConns: 2}, &sim.ULP{})
	for what, edit := range map[string]func(*falcon.ConnConfig){
		"LocalCID":       func(c *falcon.ConnConfig) { c.LocalCID = 1 << 24 },
		"RemoteCID":      func(c *falcon.ConnConfig) { c.RemoteCID = 1 << 24 },
		"LocalFunction":  func(c *falcon.ConnConfig) { c.LocalFunction = 1 << 24 },
		"RemoteFunction": func(c *falcon.ConnConfig) { c.RemoteFunction = 1 << 24 },
		"Protocol":       func(c *falcon.ConnConfig) { c.Protocol = 1 },
		"MTU":            func(c *falcon.ConnConfig) { c.MTU = 1 << 16 },
		"GiveUp":         func(c *falcon.ConnConfig) { c.GiveUp = -1 },
	} {
		cfg := connConfig(true)
		edit(&cfg)
		if _, err := e.Open(0, cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	cfg := connConfig(true)
	c, err := e.Open(0, cfg)
	if err != nil || e.Conn(cfg.LocalCID) != c {
		t.Fatalf("open: %v", err)
	}
	if _, err := e.Open(0, cfg); !errors.Is(err, falcon.ErrCIDInUse) {
		t.Errorf("same CID: %v", err)
	}
	cfg.LocalCID++
	if _, err := e.Open(0, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.LocalCID++
	if _, err := e.Open(0, cfg); !errors.Is(err, falcon.ErrTooManyConns) {
		t.Errorf("third: %v", err)
	}
}

func TestEachValueOfAProfileHasItsBounds(t *testing.T) {
	for _, p := range []falcon.Profile{falcon.Software(), falcon.Hardware()} {
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	for what, edits := range map[string][]func(*falcon.Profile){
		"CC":           {func(p *falcon.Profile) { p.CC = nil }},
		"ReqTxWindow":  {func(p *falcon.Profile) { p.ReqTxWindow = 3 }, func(p *falcon.Profile) { p.ReqTxWindow = 0 }},
		"DataTxWindow": {func(p *falcon.Profile) { p.DataTxWindow = 2 * falcon.MaxTxWindow }},
		"MaxTxn":       {func(p *falcon.Profile) { p.MaxTxn = 0 }},
		"AckCount": {
			func(p *falcon.Profile) { p.AckCount = 0 }, func(p *falcon.Profile) { p.AckCount = 1025 }, func(p *falcon.Profile) { p.AckTimeout = 0 },
		},
		"ARPercent": {func(p *falcon.Profile) { p.ARPercent = 101 }, func(p *falcon.Profile) { p.ARPercent = -1 }},
		"limits": {
			func(p *falcon.Profile) { p.GiveUp = -1 }, func(p *falcon.Profile) { p.ResyncGiveUp = -1 }, func(p *falcon.Profile) { p.TxnTimeout = -1 },
			func(p *falcon.Profile) { p.RxTimeout = -1 }, func(p *falcon.Profile) { p.OpGap = -1 }, func(p *falcon.Profile) { p.TurnBytes = -1 },
			func(p *falcon.Profile) { p.MaxRetransmits = -1 }, func(p *falcon.Profile) { p.OOOCount = -1 },
		},
		"ReorderTime": {
			func(p *falcon.Profile) { p.ReorderTime = -1 }, func(p *falcon.Profile) { p.AnswerTimeout = 0 },
			func(p *falcon.Profile) { p.Probe = falcon.ProbeFirstUnacked + 1 }, func(p *falcon.Profile) { p.ProbeTime = 0 },
		},
		"weights": {
			func(p *falcon.Profile) { p.WeightAck = 0 }, func(p *falcon.Profile) { p.WeightNew = 0 }, func(p *falcon.Profile) { p.WeightRetransmit = 0 },
		},
	} {
		for i, edit := range edits {
			p := falcon.Software()
			edit(&p)
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%s, %d: error %v", what, i, err)
			}
		}
	}
	for i, edit := range []func(*falcon.Profile){
		func(p *falcon.Profile) {
			p.ReqTxWindow, p.DataTxWindow, p.MaxTxn = 1, falcon.MaxTxWindow, falcon.MaxTxWindow
		},
		func(p *falcon.Profile) { p.AckCount, p.AckTimeout, p.ARPercent = 1, 1, 0 },
		func(p *falcon.Profile) { p.AckCount, p.ARPercent = 1024, 100 },
		func(p *falcon.Profile) {
			p.GiveUp, p.ResyncGiveUp, p.TxnTimeout, p.RxTimeout, p.OpGap, p.TurnBytes, p.MaxRetransmits, p.OOOCount = 0, 0, 0, 0, 0, 0, 0, 0
		},
		func(p *falcon.Profile) {
			p.ReorderTime, p.AnswerTimeout, p.Probe, p.ProbeTime = 0, 1, falcon.ProbeNone, 0
		},
		func(p *falcon.Profile) { p.Probe, p.ProbeTime = falcon.ProbeFirstUnacked, 1 },
		func(p *falcon.Profile) { p.WeightNew, p.WeightRetransmit, p.WeightAck = 1, 1, 1 },
	} {
		p := falcon.Software()
		if edit(&p); p.Check() != nil {
			t.Errorf("the last good values, %d: %v", i, p.Check())
		}
	}
}

func TestCallsTooLongOrWithoutTransactionAreRefused(t *testing.T) {
	s := newSingle(t, testProfile())
	for _, err := range []error{
		s.c.Push(s.now, 1, -1), s.c.Push(s.now, 1, 4201), s.c.Pull(s.now, 1, -1, 1), s.c.Pull(s.now, 1, falcon.MaxPullHeader+1, 1),
		s.c.Pull(s.now, 1, 1, -1), s.c.Pull(s.now, 1, 1, 4201),
	} {
		if !errors.Is(err, falcon.ErrTooLong) {
			t.Errorf("error %v, want ErrTooLong", err)
		}
	}
	s.ulp.OnPull, s.ulp.OnPush = noAnswer, noAnswer
	s.pullRequest(500, 7, false)
	s.pushData(200, 8, false)
	if err := s.c.RespondPull(s.now, 7, 1, 65); !errors.Is(err, falcon.ErrTooLong) {
		t.Errorf("response too long: %v", err)
	}
	for _, rsn := range []uint32{6, 8, 9, 7 + 1<<31} {
		if err := s.c.RespondPull(s.now, rsn, 1, 1); !errors.Is(err, falcon.ErrNoTransaction) {
			t.Errorf("response to RSN %d: %v", rsn, err)
		}
		s.c.RNRPull(s.now, rsn, 1)
		s.c.DeferPull(s.now, rsn, s.now+us)
	}
	s.c.AckPush(s.now, 7)
	s.c.AckPush(s.now, 9)
	s.c.NackPush(s.now, 9, wire.NackCIE, 0, 0)
	if err := s.c.RespondPull(s.now, 7, 1, 64); err != nil {
		t.Errorf("response: %v", err)
	}
	if err := s.c.RespondPull(s.now, 7, 1, 64); !errors.Is(err, falcon.ErrNoTransaction) {
		t.Errorf("second response: %v", err)
	}
}

func TestPacketsWithWrongHeadersAreDroppedAndCounted(t *testing.T) {
	s := newSingle(t, testProfile())
	h := s.header(wire.TypePullData, 200, 1, false)
	h.Function++
	s.want(s.receive(h.Append(nil)), wire.DropFunction)
	h = s.header(wire.TypePullData, 200, 1, false)
	h.Protocol = wire.ProtocolNVMe
	s.want(s.receive(h.Append(nil)), wire.DropProtocol)
	h = s.header(wire.TypePullData, 200, 1, false)
	h.CID++
	s.e.Prefetch(h.CID) // whoever is meant
	s.want(s.receive(h.Append(nil)), wire.DropUnknownCID)
	s.want(s.receive(nil), wire.DropShort)
	s.want(s.pullRequest(500, 6, false), wire.DropRSN)
	s.want(s.pullRequest(500, 7+falcon.MaxTxWindow, false), wire.DropResource)
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pullRequest(500, 7, false), wire.DropRSN)
	st := s.e.Stats()
	if st.PacketsReceived != 8 || st.Drops[wire.DropNone] != 1 || st.Drops[wire.DropRSN] != 2 {
		t.Errorf("counters %+v", st)
	}
	if got := s.transmit(); len(only(got, wire.TypeNACK)) != 1 {
		t.Errorf("sent %v, want one resource NACK", got)
	}
}

func TestTheULPIsToldWhenCreditsReturn(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	node.Starve(true)
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Credits = node })
	if err := s.c.Push(s.now, 1, 10); !errors.Is(err, falcon.ErrXoff) {
		t.Fatalf("push without credits: %v", err)
	}
	s.drain()
	if n := s.count(falcon.EvCredit); n != 0 {
		t.Errorf("%d EvCredit", n)
	}
	node.Starve(false)
	s.e.CreditsChanged()
	s.drain()
	if n := s.count(falcon.EvCredit); n != 1 {
		t.Errorf("%d EvCredit, want 1", n)
	}
	s.push(1)
}

func TestAConnectionIsBoundedByItsOwnCredits(t *testing.T) {
	function := credit.New(nil, credit.NoLimit())
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) {
		c.Credits = credit.New(function, credit.Cost{2, 100, 2, 100, 2, 100})
	})
	s.push(2)
	if err := s.c.Push(s.now, 3, 10); !errors.Is(err, falcon.ErrXoff) {
		t.Errorf("third push: %v", err)
	}
	if got := function.InUse()[credit.ReqPktTx]; got != 2 {
		t.Errorf("function holds %d", got)
	}
}

// TestCase78_CrossingWithoutDeadlock: pools of one, reads and writes in both directions.
func TestCase78_CrossingWithoutDeadlock(t *testing.T) {
	limit := credit.Cost{1, 100, 1, 100, 1, 100}
	for _, ordered := range []bool{true, false} {
		p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
			for i := range cfg {
				cfg[i].Credits, cfg[i].RxContexts, cfg[i].RxCells = credit.New(nil, limit), 1, 1
			}
			conn.Ordered = ordered
		})
		left := [2]int{100, 100}
		for rounds := 0; left != [2]int{} && rounds < 2000; rounds++ {
			for i, c := range []*falcon.Conn{p.a, p.b} {
				if left[i] == 0 {
					continue
				}
				var err error
				if (left[i]+i)%2 == 0 {
					err = c.Push(p.Now, uint64(left[i]), 100)
				} else {
					err = c.Pull(p.Now, uint64(left[i]), 44, 100)
				}
				if err == nil {
					left[i]--
				}
			}
			p.run(20 * us)
		}
		p.run(10 * ms)
		for i := range 2 {
			if n := len(p.events(i, falcon.EvPushDone)) + len(p.events(i, falcon.EvPullDone)); n != 100 {
				t.Errorf("ordered %v, node %d: %d of 100 completed", ordered, i, n)
			}
		}
		p.wantIdle()
	}
}

// TestEveryCodeHasItsName: logs, counters and error messages tell the codes apart.
func TestEveryCodeHasItsName(t *testing.T) {
	seen := map[string]bool{}
	name := func(what, s string) {
		t.Helper()
		if s == "" || seen[what+s] {
			t.Errorf("%s %q, empty or twice", what, s)
		}
		seen[what+s] = true
	}
	for k := range falcon.EvLongPath + 1 {
		name("event", k.String())
	}
	for _, c := range []falcon.Completion{
		falcon.CmplAck, falcon.CmplTargetNackCIE, falcon.CmplTargetNackNRE, falcon.CmplTargetNackCID, falcon.CmplLocalTO, falcon.CmplOpErr,
		falcon.CmplDeadConn, falcon.CmplLocalRsrc, falcon.CmplUlpCdtErr, falcon.CmplRemoteErr, falcon.CmplLocalXlr,
	} {
		name("completion", c.String())
		name("counter", c.Name())
	}
	for r := range falcon.CloseReason(falcon.CloseReasons) {
		name("reason", r.String())
	}
}

// TestOpenTakesEachParameterUpToItsBound: the first and the last value of each parameter, and those
// beyond.
func TestOpenTakesEachParameterUpToItsBound(t *testing.T) {
	e := falcon.NewEngine(falcon.Config{Profile: testProfile()}, &sim.ULP{})
	next := falcon.CID(0)
	for i, c := range []struct {
		edit func(*falcon.ConnConfig)
		ok   bool
	}{
		{func(c *falcon.ConnConfig) { c.LocalCID = wire.MaxCID }, true},
		{func(c *falcon.ConnConfig) { c.RemoteCID = wire.MaxCID }, true},
		{func(c *falcon.ConnConfig) { c.LocalFunction = wire.MaxFunction }, true},
		{func(c *falcon.ConnConfig) { c.RemoteFunction = wire.MaxFunction }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 0 }, false},
		{func(c *falcon.ConnConfig) { c.MTU = 1 }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 0xffff }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 1 << 16 }, false},
		{func(c *falcon.ConnConfig) { c.GiveUp = 0 }, true},
	} {
		cfg := connConfig(true)
		next++
		cfg.LocalCID = next
		c.edit(&cfg)
		if _, err := e.Open(0, cfg); (err == nil) != c.ok {
			t.Errorf("case %d: %v", i, err)
		}
	}
}

// TestAPacketCarriesUpToTheMTU: a packet may carry 0 bytes up to the MTU; a pull's headers also
// have their own limit.
func TestAPacketCarriesUpToTheMTU(t *testing.T) {
	for _, c := range []struct{ mtu, header int }{{4200, falcon.MaxPullHeader}, {100, 100}} {
		s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.MTU = c.mtu })
		for i, err := range []error{
			s.c.Push(s.now, 1, 0), s.c.Push(s.now, 2, c.mtu), s.c.Pull(s.now, 3, 0, 0), s.c.Pull(s.now, 4, c.header, c.mtu),
		} {
			if err != nil {
				t.Errorf("MTU %d, good length %d: %v", c.mtu, i, err)
			}
		}
		for i, err := range []error{s.c.Push(s.now, 1, c.mtu+1), s.c.Pull(s.now, 3, c.header+1, 0), s.c.Pull(s.now, 4, 0, c.mtu+1)} {
			if !errors.Is(err, falcon.ErrTooLong) {
				t.Errorf("MTU %d, bad length %d: %v", c.mtu, i, err)
			}
		}
	}
}

// TestAResponseFitsTheRequestAndTheMTU: a response may be empty, as long as what was asked for, and
// no longer than the MTU whatever was asked for.
func TestAResponseFitsTheRequestAndTheMTU(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.MTU = 50 })
	s.ulp.OnPull = noAnswer
	s.pullRequest(500, 7, false) // for 64 bytes
	s.pullRequest(501, 8, false)
	for length, want := range map[int]error{-1: falcon.ErrTooLong, 51: falcon.ErrTooLong, 65: falcon.ErrTooLong} {
		if err := s.c.RespondPull(s.now, 7, 1, length); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
	if err := errors.Join(s.c.RespondPull(s.now, 7, 1, 50), s.c.RespondPull(s.now, 8, 1, 0)); err != nil {
		t.Error(err)
	}
}
