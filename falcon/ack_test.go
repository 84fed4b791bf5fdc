package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase12_AckRequest(t *testing.T) {
	s := newSingle(t, ackProfile(100, 100*us))
	s.ulp.OnPull, s.ulp.OnPush = noAnswer, noAnswer
	s.pullRequest(500, 7, true)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK {
		t.Errorf("pull request with AR: sent %v, want a BACK", got)
	}
	s.pushData(200, 8, true)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("push with AR before the ULP's ack: sent %v", got)
	}
	s.now += us
	s.c.AckPush(s.now, 8)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK {
		t.Errorf("push with AR: sent %v, want a BACK", got)
	}
}

func TestCase31_CountPullRequests(t *testing.T) {
	s := newSingle(t, ackProfile(3, 100*us))
	s.ulp.OnPull = noAnswer
	s.pullRequest(500, 7, false)
	s.pullRequest(501, 8, false)
	if got := s.transmit(); len(got) != 0 {
		t.Fatalf("sent %v before the count", got)
	}
	s.pullRequest(502, 9, false)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).ReqBase != 503 {
		t.Errorf("sent %v, want a BACK", got)
	}
}

func TestCase32_CountPushHalves(t *testing.T) {
	s := newSingle(t, ackProfile(1, 100*us))
	s.ulp.OnPush = noAnswer
	s.pushData(200, 7, false)
	if got := s.transmit(); len(got) != 0 {
		t.Fatalf("sent %v on receipt", got)
	}
	s.now += us
	s.c.AckPush(s.now, 7)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).DataBase != 201 {
		t.Errorf("sent %v, want a BACK", got)
	}
}

func TestCase33_PushesNeverAcknowledged(t *testing.T) {
	s := newSingle(t, ackProfile(1, ms))
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	start := s.now
	s.pushData(200, 7, false)
	got := s.advance(10 * us)
	s.pushData(201, 8, false)
	got = append(got, s.advance(10*us)...)
	s.pullRequest(500, 9, false)
	got = append(got, s.advance(100*us)...)
	if len(got) != 2 || got[0].At != start+10*us || got[1].At != start+20*us {
		t.Errorf("ACKs %v, want at 10 µs and 20 µs", got)
	}
}

func TestCase34_CoalescingTimer(t *testing.T) {
	s := newSingle(t, ackProfile(100, 50))
	s.ulp.OnPull = noAnswer
	start := s.now
	s.pullRequest(500, 7, false)
	s.now += 20
	s.pullRequest(501, 8, false)
	received := s.now
	got := s.advance(us)
	if len(got) != 1 || got[0].At != start+50 {
		t.Fatalf("sent %v, want one ACK at 50 ns", got)
	}
	if a := ack(t, got[0].Packet); a.T1 != falcon.FalconTime(received-5*us) || a.T2 != falcon.FalconTime(received) {
		t.Errorf("t1 %d t2 %d: not of the last packet", a.T1, a.T2)
	}
}

func TestCase35_PiggybackAfterOutOfWindow(t *testing.T) {
	s := newSingle(t, ackProfile(2, ms), func(c *falcon.ConnConfig) { c.RxReqPSN, c.Ordered, c.RxRSN = 0, false, 0 })
	s.ulp.OnPull = noAnswer
	s.want(s.pullRequest(270, 70, false), wire.DropBeyondWindow)
	s.push(1)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypePushData {
		t.Fatalf("sent %v, want the push", got)
	}
	s.pullRequest(60, 60, false)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Errorf("sent %v, want an EACK", got)
	}
}

func TestCase36_EacksListGaps(t *testing.T) {
	s := newSingle(t, ackProfile(1, ms), func(c *falcon.ConnConfig) { c.RxReqPSN, c.Ordered, c.RxRSN = 0, false, 0 })
	s.ulp.OnPull = noAnswer
	step := func(psn uint32, wantBase uint32, wantBits uint64) {
		t.Helper()
		s.pullRequest(psn, psn, false)
		got := s.transmit()
		if len(got) != 1 {
			t.Fatalf("PSN %d: sent %v", psn, got)
		}
		a := ack(t, got[0].Packet)
		if a.ReqBase != wantBase || a.Req != wantBits || a.Extended != (wantBits != 0) {
			t.Errorf("PSN %d: base %d bits %b extended %v, want %d %b", psn, a.ReqBase, a.Req, a.Extended, wantBase, wantBits)
		}
	}
	step(2, 0, 0b100)
	step(4, 0, 0b10100)
	step(0, 1, 0b1010)
	step(3, 1, 0b1110)
	step(1, 5, 0)
}

func TestCase37_CounterNotNegative(t *testing.T) {
	s := newSingle(t, ackProfile(2, 10*us))
	s.ulp.OnPush = noAnswer
	s.pushData(200, 7, false)
	s.pushData(201, 8, false)
	if got := s.advance(20 * us); len(got) != 1 {
		t.Fatalf("sent %v, want one ACK by time", got)
	}
	// The two acknowledgements of the ULP count as one packet, which is less than the count of two.
	s.c.AckPush(s.now, 7)
	s.c.AckPush(s.now, 8)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
	s.pushData(202, 9, false)
	s.c.AckPush(s.now, 9)
	if got := s.transmit(); len(got) != 1 {
		t.Errorf("sent %v, want one ACK by count", got)
	}
}

func TestCase38_AckRequestShare(t *testing.T) {
	share := func(fcwnd float64, percent int, threshold uint32) (with int) {
		p := testProfile()
		p.CC, p.ARFcwnd, p.ARPercent, p.MaxTxn = fixed(fcwnd, 1024), threshold, percent, 1024
		p.DataTxWindow = 1024
		s := newSingle(t, p)
		const n = 1000
		for range n {
			s.push(1)
			for _, sent := range s.transmit() {
				h := header(t, sent.Packet)
				if h.AckReq {
					with++
				}
				s.ack(wire.Ack{DataBase: h.PSN + 1})
			}
		}
		return with * 100 / n
	}
	if got := share(5, 10, 5); got != 100 {
		t.Errorf("fcwnd at the threshold: %d %%", got)
	}
	for _, want := range []int{10, 22, 12, 6, 50, 100} {
		if got := share(6, want, 5); got < want-3 || got > want+4 {
			t.Errorf("percent %d: %d %%", want, got)
		}
	}
	if got := share(1, 0, 0); got != 0 {
		t.Errorf("disabled: %d %%", got)
	}
}

func TestCase39_AckRequestOutOfWindow(t *testing.T) {
	s := newSingle(t, ackProfile(10, 30*us), func(c *falcon.ConnConfig) { c.RxReqPSN = 0 })
	s.want(s.pullRequest(280, 7, true), wire.DropBeyondWindow)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("sent %v at once", got)
	}
	if got := s.advance(40 * us); len(got) != 1 {
		t.Errorf("sent %v, want the coalesced EACK", got)
	}
}

func TestCase40_Piggyback(t *testing.T) {
	s := newSingle(t, ackProfile(10, 30*us))
	s.ulp.OnPull = noAnswer
	s.pullRequest(500, 7, false)
	s.push(1)
	got := s.advance(100 * us)
	if len(got) != 1 || header(t, got[0].Packet).ReqBase != 501 {
		t.Errorf("sent %v, want only the push with the new base", got)
	}
	s.pullRequest(502, 9, false) // a hole: the bases do not say everything
	s.push(1)
	if got := s.advance(100 * us); len(got) != 2 || got[1].Type != wire.TypeEACK {
		t.Errorf("sent %v, want a push and an EACK", got)
	}
}

func TestCase41_DuplicateOfAcknowledged(t *testing.T) {
	s := newSingle(t, ackProfile(10, 30*us))
	s.ulp.OnPull = noAnswer
	s.pullRequest(500, 7, true)
	s.pullRequest(502, 9, true)
	s.transmit()
	s.want(s.pullRequest(500, 7, true), wire.DropBehindWindow)
	s.want(s.pullRequest(502, 9, true), wire.DropDuplicate)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("duplicates with AR: sent %v at once", got)
	}
	if got := s.advance(50 * us); len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Errorf("sent %v, want one coalesced EACK", got)
	}
	if n := s.count(falcon.EvPull); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
}

func TestCase94_TimestampsOfNacks(t *testing.T) {
	s := newSingle(t, testProfile())
	s.ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) { ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 3, 0) }
	s.pushData(200, 7, false)
	received := s.now
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeNACK {
		t.Fatalf("sent %v", got)
	}
	n, d := wire.ParseNack(got[0].Packet)
	if d != wire.DropNone || n.T2 != falcon.FalconTime(received) || n.T1 != falcon.FalconTime(received-5*us) {
		t.Errorf("NACK %+v", n)
	}
	if n.PSN != 200 || n.Code != wire.NackRNR || n.RNR != 3 || n.Request {
		t.Errorf("NACK %+v", n)
	}
}

func TestAFlushSendsHeldAcknowledgementsAtOnce(t *testing.T) {
	s := newSingle(t, ackProfile(100, ms))
	s.pushData(200, 7, false)
	if got := s.transmit(); len(got) != 0 {
		t.Fatalf("sent %v", got)
	}
	s.e.FlushAcks(s.now)
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK {
		t.Errorf("sent %v, want a BACK", got)
	}
	s.e.FlushAcks(s.now)
	if got := s.advance(10 * ms); len(got) != 0 {
		t.Errorf("sent %v after everything was acknowledged", got)
	}
}

// TestMarkedACKsAndNACKsAreCounted: marked ACKs and NACKs count like other packets (Falcon §7.7.1:
// ECN-marked packets received).
func TestMarkedACKsAndNACKsAreCounted(t *testing.T) {
	s := newSingle(t, ackProfile(1, 100*us))
	cfg := s.c.Config()
	a := wire.Ack{CID: cfg.LocalCID, DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN}
	n := wire.Nack{CID: cfg.LocalCID, DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN, Code: wire.NackResource}
	for _, b := range [][]byte{a.Append(nil), n.Append(nil)} {
		s.e.Receive(s.now, falcon.Packet{Data: b, CE: true})
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	got := only(s.advance(200*us), wire.TypeBACK)
	if len(got) == 0 || ack(t, got[0].Packet).ECN != 2 {
		t.Errorf("sent %v, want the two marks told", got)
	}
}

// TestAckRequestOfABurst: with ARBurst the push after which nothing waits asks for an
// acknowledgement, and the last of a message does; nothing else (Falcon §9.1.3.1).
func TestAckRequestOfABurst(t *testing.T) {
	p := testProfile()
	p.ARBurst = true
	asked := func(issue func(c *falcon.Conn) error) (out []bool) {
		s := newSingle(t, p, func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
		if err := issue(s.c); err != nil {
			t.Fatal(err)
		}
		for _, sent := range s.transmit() {
			out = append(out, header(t, sent.Packet).AckReq)
		}
		return out
	}
	push := func(c *falcon.Conn, tag uint64) error { return c.Push(ms, tag, 32) }
	equal(t, "a burst", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), push(c, 2), push(c, 3))
	}), []bool{false, false, true})
	equal(t, "the end of a message", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), c.PushLast(ms, 2, 32), push(c, 3))
	}), []bool{false, true, true})
	equal(t, "a pull behind", asked(func(c *falcon.Conn) error {
		return errors.Join(push(c, 1), c.Pull(ms, 2, 44, 64))
	}), []bool{false, false})
}

// TestLossIsToldAtOnce: a packet that makes others count as lost, because they are missing far
// enough below it, is acknowledged at once, in either window. Smaller reordering is not
// acknowledged at once, and no loss is reported twice.
func TestLossIsToldAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		distance uint32
		arrive   []uint32 // offsets of PSNs
		told     []uint32 // those that are acknowledged at once
	}{
		"in order":              {3, []uint32{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		"overtaken by two":      {3, []uint32{1, 2, 0, 4, 5, 3}, nil},
		"one lost":              {3, []uint32{0, 2, 3, 4, 5, 6, 7, 8}, []uint32{4}},
		"the first lost":        {3, []uint32{1, 2, 3, 4}, []uint32{3}},
		"two apart":             {3, []uint32{0, 2, 4, 5, 6, 7}, []uint32{4, 6}},
		"a burst":               {3, []uint32{0, 6, 7, 8, 9}, []uint32{6, 7, 8}},
		"and what would tell":   {3, []uint32{0, 2, 3, 5, 6, 7, 8}, []uint32{5, 7}},
		"a late one tells none": {3, []uint32{0, 5, 3, 4}, []uint32{5}},
		"another distance":      {5, []uint32{0, 2, 3, 4, 5, 6, 7}, []uint32{6}},
		"the least distance":    {0, []uint32{0, 2, 3}, []uint32{2}},
		"across halves":         {60, []uint32{0, 2, 61, 62}, []uint32{61}},
	} {
		for _, pull := range []bool{false, true} {
			p := ackProfile(100, ms)
			p.OOODistance, p.RACK = c.distance, false
			s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = false })
			s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
			cfg := s.c.Config()
			var told []uint32
			for _, n := range c.arrive {
				if pull {
					s.want(s.pullRequest(cfg.RxReqPSN+n, cfg.RxRSN+n, false), wire.DropNone)
				} else {
					s.want(s.pushData(cfg.RxDataPSN+n, cfg.RxRSN+n, false), wire.DropNone)
				}
				for _, sent := range s.transmit() {
					a := ack(t, sent.Packet)
					at := cfg.RxDataPSN + n - a.DataBase
					got := a.DataRx
					if pull {
						at, got = cfg.RxReqPSN+n-a.ReqBase, wire.Bitmap128{Lo: a.Req}
					}
					if told = append(told, n); sent.Type != wire.TypeEACK || got.Lo>>at&1 != 1 && got.Hi>>(at-64)&1 != 1 {
						t.Errorf("%s, pull %v: %v does not show packet %d", name, pull, a, n)
					}
				}
			}
			equal(t, name, told, c.told)
		}
	}
}

// TestAckRequestBehindHole: a push that must wait for an earlier one cannot be acknowledged, but
// its AR bit still causes an ACK at once.
func TestAckRequestBehindHole(t *testing.T) {
	s := newSingle(t, testProfile())
	s.want(s.pushData(201, 8, true), wire.DropNone)
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeEACK || ack(t, got[0].Packet).DataRx != bits(1) {
		t.Errorf("sent %v, want an EACK at once", got)
	}
}

// TestFlushWithoutAcks: a flush sends nothing if nothing was received.
func TestFlushWithoutAcks(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(1)
	s.transmit()
	s.e.FlushAcks(s.now)
	if got := s.transmit(); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
}

// TestAckRequestOfRetransmissions: retransmissions ask for an acknowledgement if the profile uses
// AR at all.
func TestAckRequestOfRetransmissions(t *testing.T) {
	for what, c := range map[string]struct {
		edit func(*falcon.Profile)
		want bool
	}{
		"never":       {func(*falcon.Profile) {}, false},
		"of a burst":  {func(p *falcon.Profile) { p.ARBurst = true }, true},
		"of a share":  {func(p *falcon.Profile) { p.ARPercent = 1 }, true},
		"of a window": {func(p *falcon.Profile) { p.ARFcwnd = 1 }, true},
	} {
		p := testProfile()
		c.edit(&p)
		s := newSingle(t, p)
		s.push(1)
		s.transmit()
		got := s.advance(1100 * us)
		if len(got) != 1 || header(t, got[0].Packet).AckReq != c.want {
			t.Errorf("%s: sent %v, want AR %v", what, got, c.want)
		}
	}
}
