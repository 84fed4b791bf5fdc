package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase42_InitialGating(t *testing.T) {
	for _, c := range []struct {
		fcwnd float64
		ncwnd uint32
		want  int
	}{{2, 64, 2}, {1, 64, 1}, {32, 3, 3}, {1.9, 64, 1}, {5, 1, 1}} {
		s := newSingle(t, windows(c.fcwnd, c.ncwnd))
		s.push(10)
		if got := len(s.transmit()); got != c.want {
			t.Errorf("fcwnd %v ncwnd %d: %d packets, want %d", c.fcwnd, c.ncwnd, got, c.want)
		}
		s.now += 10 * us
		s.ack(wire.Ack{DataBase: 301})
		if got := len(s.transmit()); got != 1 {
			t.Errorf("fcwnd %v ncwnd %d: %d packets after one ACK, want 1", c.fcwnd, c.ncwnd, got)
		}
	}
}

// shrinking is congestion control whose fabric window is set by the test.
type shrinking struct {
	cc.Fixed
	fcwnd *uint32
}

func (c shrinking) Update(s *cc.State, ev *cc.Event) cc.Result {
	s.Fcwnd = *c.fcwnd
	return c.Fixed.Update(s, ev)
}

func TestCase43_RetransmissionGating(t *testing.T) {
	fcwnd := uint32(2 << 10)
	p := testProfile()
	p.CC = shrinking{fixed(2, 64).(cc.Fixed), &fcwnd}
	s := newSingle(t, p)
	s.push(2)
	s.transmit()
	got := s.advance(ms + 10*us)
	equal(t, "retransmitted with fcwnd 2", psns(t, got), []uint32{300, 301})
	fcwnd = 1 << 10
	got = s.advance(ms + 10*us)
	equal(t, "retransmitted with fcwnd 1", psns(t, got), []uint32{300})
}

func TestCase44_OutstandingRetransmissions(t *testing.T) {
	s := newSingle(t, windows(32, 2))
	s.push(2)
	s.transmit()
	got := s.advance(ms + 10*us)
	equal(t, "first retransmission", psns(t, got), []uint32{300, 301})
	// A packet that is due again is no longer outstanding: both are sent again although ncwnd is 2.
	got = s.advance(ms + 10*us)
	equal(t, "second retransmission", psns(t, got), []uint32{300, 301})
	s.ack(wire.Ack{DataBase: 302})
	s.push(2)
	equal(t, "new packets after the ACK", psns(t, s.transmit()), []uint32{302, 303})
	got = s.advance(ms + 10*us)
	equal(t, "their retransmission", psns(t, got), []uint32{302, 303})
}

func TestCase45_PullDataIgnoresNcwnd(t *testing.T) {
	s := newSingle(t, windows(32, 1))
	for i := range uint32(5) {
		s.pullRequest(500+i, 7+i, false)
	}
	if got := only(s.transmit(), wire.TypePullData); len(got) != 5 {
		t.Errorf("%d pull data sent, want 5", len(got))
	}
	s.push(3)
	s.pull(3)
	got := s.transmit()
	if len(only(got, wire.TypePushData)) != 1 {
		t.Errorf("%d pushes sent with ncwnd 1", len(only(got, wire.TypePushData)))
	}
}

// paced is a window below one packet.
type paced struct{ cc.Fixed }

func (p paced) Update(s *cc.State, ev *cc.Event) cc.Result {
	p.Fixed.Update(s, ev)
	return cc.Result{IPG: 100} // 51.2 µs
}

func TestCase46_Pacing(t *testing.T) {
	p := testProfile()
	p.CC = paced{cc.Fixed{Fcwnd: 512, Ncwnd: 64, RTO: 7630}}
	s := newSingle(t, p)
	s.push(4)
	got := s.transmit()
	if len(got) != 1 {
		t.Fatalf("%d packets with fcwnd 0.5, want 1", len(got))
	}
	at := s.now
	for i := range uint32(3) {
		s.now += 10 * us
		s.ack(wire.Ack{DataBase: 301 + i})
		got = s.advance(200 * us)
		if len(got) != 1 {
			t.Fatalf("%d packets after ACK %d, want 1", len(got), i)
		}
		if i > 0 && got[0].At-at < 51_200 {
			t.Errorf("gap %d ns, want at least 51200", got[0].At-at)
		}
		at = got[0].At
	}
}

func TestCase47_48_TimerPerPacket(t *testing.T) {
	s := newSingle(t, testProfile())
	rto := falcon.Time(7630) * 131072 / 1000
	first := s.now
	s.push(1)
	s.transmit()
	s.advance(300 * us)
	second := s.now
	s.push(1)
	s.transmit()
	s.advance(100 * us)
	s.ack(wire.Ack{DataBase: 301}) // only the second is left
	got := s.advance(ms)
	if len(got) != 1 || got[0].At != second+rto || header(t, got[0].Packet).PSN != 301 {
		t.Errorf("sent %v, want PSN 301 at %d", got, second+rto)
	}

	s = newSingle(t, testProfile())
	s.push(1)
	s.transmit()
	got = s.advance(2 * rto)
	if len(got) != 2 || got[0].At != first+rto || got[1].At != first+2*rto {
		t.Errorf("retransmissions %v, want exactly at the RTO", got)
	}
}

// counts records the retransmission counts congestion control sees.
type counts struct {
	cc.Fixed
	seen *[]uint8
}

func (c counts) Update(s *cc.State, ev *cc.Event) cc.Result {
	if ev.Kind == cc.Retransmit {
		*c.seen = append(*c.seen, ev.RetransmitCount)
	}
	return c.Fixed.Update(s, ev)
}

func TestCase48_RetransmitCount(t *testing.T) {
	var seen []uint8
	p := testProfile()
	p.CC, p.MaxRetransmits, p.TxnTimeout = counts{fixed(32, 64).(cc.Fixed), &seen}, 9, 0
	s := newSingle(t, p)
	s.push(1)
	s.advance(9*ms + 500*us)
	equal(t, "counts", seen, []uint8{1, 2, 3, 4, 5, 6, 6, 6, 6})
}

func TestCase49_BlockedPushIsNotOvertaken(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, windows(32, 1), func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.push(2)
		s.pull(1)
		got := s.transmit()
		want := 2 // unordered: the pull passes the second push
		if ordered {
			want = 1
		}
		if len(got) != want {
			t.Errorf("ordered %v: %d packets, want %d", ordered, len(got), want)
		}
		s.now += 10 * us
		s.ack(wire.Ack{DataBase: 301})
		got = s.transmit()
		if ordered && (len(got) != 2 || got[0].Type != wire.TypePushData || got[1].Type != wire.TypePullRequest) {
			t.Errorf("after the ACK: %v, want push, pull", got)
		}
	}
}

// TestRetransmissionBlocksNewRequests: on an ordered connection no new packet is sent before
// retransmissions.
func TestRetransmissionBlocksNewRequests(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.push(2)
		s.transmit()
		s.now += 1100 * us
		s.e.Advance(s.now)
		s.push(1)
		want := []uint32{300, 301, 302}
		if !ordered { // shares of the arbiter
			want = []uint32{300, 302, 301}
		}
		equal(t, "PSNs", psns(t, s.transmit()), want)
	}
}

// TestRetransmissionsOfBothWindowsAlternate: pull data and the initiator's packets share retransmission (Falcon
// §8.2.1.2, CR rule 2).
func TestRetransmissionsOfBothWindowsAlternate(t *testing.T) {
	s := newSingle(t, testProfile())
	for i := range uint32(3) {
		s.pullRequest(500+i, 7+i, false)
	}
	s.transmit()
	s.push(3)
	s.transmit()
	s.now += 1100 * us
	s.e.Advance(s.now)
	equal(t, "PSNs", psns(t, s.transmit()), []uint32{303, 300, 304, 301, 305, 302})
}

func TestCase15_OpGap(t *testing.T) {
	p := testProfile()
	p.OpGap = 25
	s := newSingle(t, p)
	s.push(20)
	s.advance(10 * us)
	got := s.advance(2 * ms)
	if len(got) < 20 {
		t.Fatalf("%d retransmissions", len(got))
	}
	for i := 1; i < len(got); i++ {
		if gap := got[i].At - got[i-1].At; gap < 25 {
			t.Errorf("gap %d ns between %d and %d", gap, i-1, i)
		}
	}
}

// TestAPacketIsWrittenWhereItFits: a packet is written where exactly its length is free, and left
// alone where a byte is missing.
func TestAPacketIsWrittenWhereItFits(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*single)
		length  int
	}{
		"ACK":          {func(s *single) { s.pullRequest(500, 7, true) }, wire.EACKLen},
		"push":         {func(s *single) { s.push(1) }, wire.PushDataLen + 32},
		"pull request": {func(s *single) { s.pull(1) }, wire.PullRequestLen + 44},
		"Resync": {func(s *single) {
			s.ulp.FillError = func(falcon.TxnKind, uint64) bool { return true }
			if err := s.c.Push(s.now, 1, 0); err != nil {
				s.t.Fatal(err)
			}
		}, wire.ResyncLen},
	} {
		for missing, sends := range map[int]bool{0: true, 1: false} {
			s := newSingle(t, testProfile())
			s.ulp.OnPull = noAnswer
			c.prepare(s)
			if n, _ := s.e.Transmit(s.now, s.buf[:c.length-missing]); (n > 0) != sends {
				t.Errorf("%s of at most %d bytes with %d missing: %d bytes sent", what, c.length, missing, n)
			}
		}
	}
}

// TestAPushMayBeShorterThanPromised: a push may turn out shorter than it was said to be, down to
// nothing; what the ULP cannot have written becomes a Resync.
func TestAPushMayBeShorterThanPromised(t *testing.T) {
	for n, good := range map[int]bool{-1: false, 0: true, 31: true, 32: true, 33: false} {
		u := &fills{n: n}
		e := falcon.NewEngine(falcon.Config{Profile: testProfile()}, u)
		c, err := e.Open(ms, connConfig(true))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Push(ms, 1, 32); err != nil {
			t.Fatal(err)
		}
		var buf [200]byte
		sent, _ := e.Transmit(ms, buf[:])
		if typ, _ := wire.Peek(buf[:sent]); (typ == wire.TypePushData) != good {
			t.Errorf("%d of 32 bytes filled: sent %v", n, typ)
			continue
		}
		if !good {
			continue
		}
		if p, payload, d := wire.ParsePushData(buf[:sent]); d != wire.DropNone || int(p.RequestLength) != n || len(payload) != n {
			t.Errorf("%d of 32 bytes filled: sent %+v with %d bytes, %v", n, p, len(payload), d)
		}
	}
}

// fills is a ULP that returns the length that the test sets.
type fills struct{ n int }

func (f *fills) Fill(*falcon.Conn, falcon.TxnKind, uint64, []byte) (int, error) { return f.n, nil }

// TestPauseEndsAtTheSlack: after an out-of-window notification new packets wait until no more than
// the slack are in flight, in either window.
func TestPauseEndsAtTheSlack(t *testing.T) {
	p := rttProfile(us)
	p.DataOWNSlack, p.ReqOWNSlack = 8, 4
	s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = false })
	s.push(10)
	s.pull(6)
	s.transmit()
	s.ack(wire.Ack{Extended: true, DataOWN: true, ReqOWN: true, DataRx: bits(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), DataAck: bits(9), Req: 0b100000})
	s.transmit() // what the notification has sent again
	s.push(1)
	s.pull(1)
	equal(t, "ten and six in flight", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{DataBase: 301, ReqBase: 101})
	equal(t, "nine and five", psns(t, s.transmit()), nil)
	s.ack(wire.Ack{DataBase: 302, ReqBase: 101})
	equal(t, "eight and five", psns(t, s.transmit()), []uint32{310})
	s.ack(wire.Ack{DataBase: 302, ReqBase: 102})
	equal(t, "eight and four", psns(t, s.transmit()), []uint32{106})
	s.push(2)
	equal(t, "the pause is over", psns(t, s.transmit()), []uint32{311, 312})
}

// narrowing is congestion control whose NIC window falls to one packet at the first timeout.
type narrowing struct{ cc.Fixed }

func (n narrowing) Update(s *cc.State, ev *cc.Event) cc.Result {
	if ev.Kind == cc.Retransmit {
		s.Ncwnd = 1
	}
	return n.Fixed.Update(s, ev)
}

// TestRetransmissionsWithinTheNICWindow: of each window no more packets are retransmitted at a time
// than the NIC window allows. On an ordered connection a pull waits for the push before it; on an
// unordered one it does not.
func TestRetransmissionsWithinTheNICWindow(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		p := testProfile()
		p.CC = narrowing{fixed(32, 64).(cc.Fixed)}
		s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.push(2)
		s.pull(2)
		s.transmit()
		got := psns(t, s.advance(1100*us))
		want := []uint32{300, 100}
		if ordered {
			want = want[:1]
		}
		equal(t, "sent again", got, want)
		s.ack(wire.Ack{DataBase: 301})
		got = psns(t, s.transmit())
		want = []uint32{301}
		if ordered {
			want = []uint32{301, 100}
		}
		equal(t, "then", got, want)
	}
}

// TestPullBlocksNewRequests: on an ordered connection nothing new passes a pull that must be sent
// again.
func TestPullBlocksNewRequests(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Ordered = ordered })
		s.pull(2)
		s.transmit()
		s.now += 1100 * us
		s.e.Advance(s.now)
		s.push(1)
		want := []uint32{100, 101, 300}
		if !ordered { // shares of the arbiter
			want = []uint32{100, 300, 101}
		}
		equal(t, "PSNs", psns(t, s.transmit()), want)
	}
}

// TestPullDataWithinTheWindow: the fabric window and the transmit window hold pull data too.
func TestPullDataWithinTheWindow(t *testing.T) {
	for _, c := range []struct {
		fcwnd  float64
		window uint32
	}{{2, 256}, {32, 2}} {
		p := windows(c.fcwnd, 64)
		p.DataTxWindow = c.window
		s := newSingle(t, p)
		for n := range uint32(5) {
			s.pullRequest(500+n, 7+n, false)
		}
		equal(t, "at first", psns(t, s.transmit()), []uint32{300, 301})
		s.ack(wire.Ack{DataBase: 301})
		equal(t, "after one is acknowledged", psns(t, s.transmit()), []uint32{302})
	}
}
