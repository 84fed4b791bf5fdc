package cm

import (
	"errors"
	"math"
	"testing"
)

// linked returns two NICs with one established connection.
func linked(t *testing.T) (w *world, a, b *node) {
	t.Helper()
	w = newWorld(t.Fatalf)
	a, b = w.add(1, 2), w.add(2, 1)
	if err := b.m.Listen(fnOf(2, 0), 1); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	if _, err := a.connect(0, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if err := b.accept(b.order[0]); err != nil {
		t.Fatal(err)
	}
	w.settle()
	return w, a, b
}

// TestANewSAReachesThePeerOnce: a new SA reaches the peer once, is confirmed, and the request of
// a sender whose SA is used up brings one.
func TestANewSAReachesThePeerOnce(t *testing.T) {
	w, a, b := linked(t)
	a.rekey(sealedBy(2, 0))
	w.advance(ms)
	w.settle()
	if len(a.prevSPI) != 0 || a.m.Stats().Rekeyed != 1 || b.m.Stats().KeysReceived != 2 {
		t.Fatalf("not confirmed: %+v", a.m.Stats())
	}
	w.checkRest()
	spi := b.openTo(1)[0].params.TxSPI
	if err := b.m.RequestRekey(sealedBy(1, 0), spi); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.advance(ms)
		w.settle()
	}
	if b.openTo(1)[0].params.TxSPI == spi || a.m.Stats().RekeyRequests != 1 {
		t.Fatal("no other SA for the one used up")
	}
	w.checkRest()
}

// TestANewSASurvivesAnOutageOfTheLink: nothing is lost while the link is down. When it is back, the
// newest SA is sent, without waiting for a timer.
func TestANewSASurvivesAnOutageOfTheLink(t *testing.T) {
	w, a, b := linked(t)
	w.setLink(1, 2, false, nil)
	w.settle()
	a.rekey(sealedBy(2, 0))
	w.advance(100_000 * ms)
	w.settle()
	if a.prevSPI[sealedBy(2, 0)] == 0 || a.m.Deadline() < w.now {
		t.Fatal("confirmed over a link that is down, or a timer spins")
	}
	w.setLink(1, 2, true, nil)
	w.settle()
	if a.prevSPI[sealedBy(2, 0)] != 0 || b.m.Stats().KeysReceived != 2 {
		t.Fatal("not handed over when the link came back")
	}
	w.checkRest()
	a.rekey(sealedBy(2, 0))
	w.advance(0)
	w.setLink(1, 2, false, func(int) int { return 0 }) // REKEY is lost in flight
	w.setLink(1, 2, true, nil)
	w.settle()
	if a.prevSPI[sealedBy(2, 0)] != 0 {
		t.Fatal("lost in flight and not repeated")
	}
	w.checkRest()
}

// TestASAReplacedWhileConnectingIsUsed: if an SA is replaced between request and answer, the
// connection starts with the new one.
func TestASAReplacedWhileConnectingIsUsed(t *testing.T) {
	w, a, b := linked(t)
	if _, err := a.connect(1, 2, 0, 1); err != nil {
		t.Fatal(err)
	}
	w.settle()
	a.rekey(sealedBy(2, 0))
	b.rekey(sealedBy(1, 0))
	w.advance(ms)
	w.settle()
	if err := b.accept(b.order[1]); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.checkRest()
}

func TestAnInvalidRekeyIsRefused(t *testing.T) {
	w, a, b := linked(t)
	good, _ := a.RxSA(sealedBy(2, 0))
	for _, tc := range []struct {
		use  Use
		sa   SA
		want error
	}{
		{Use{3, 0, 7, ClassFalcon}, good, ErrNotFound},
		{Use{2, 0, 7, numClasses}, good, ErrNotFound},
		{Use{2, MaxShards, 7, ClassFalcon}, good, ErrNotFound},
		{Use{2, 0, 7, ClassFalcon}, SA{Version: 1, SPI: 5, Key: seq(0, 16)}, ErrInvalid},
		{Use{2, 0, 7, ClassFalcon}, SA{SPI: 1 << 31, Key: seq(0, 16)}, ErrInvalid},
	} {
		if err := a.m.Rekey(tc.use, tc.sa); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if err := a.m.RequestRekey(Use{2, 0, 8, ClassFalcon}, 1); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, m := range []Message{&REKEY{8, ClassFalcon, 0, good}, &REKEYREQ{8, ClassFalcon, 0, 0}} { // a tenant not shared
		before := b.m.Stats().TenantRefused
		if err := b.m.Receive(w.now, 1, Encode(m)); err != nil {
			t.Error(err)
		}
		if b.m.Stats().TenantRefused != before+1 {
			t.Errorf("%T of a foreign tenant was not refused", m)
		}
	}
	ack := REKEYACK{7, ClassFalcon, 0, 99, 0} // of an SA nobody gave out
	if err := b.m.Receive(w.now, 1, Encode(&ack)); err != nil {
		t.Error(err)
	}
	b.drain()
	w.checkRest()
}

// TestAPeerThatSealsWithAnOldSAIsToldTheNewOne: the connection manager learns of a packet with a
// wrong SPI and tells the peer again which key to use, but not for every packet (Falcon §9.2.2.3).
func TestAPeerThatSealsWithAnOldSAIsToldTheNewOne(t *testing.T) {
	w, a, b := linked(t)
	sa, err := a.RxSA(sealedBy(2, 0))
	if err != nil {
		t.Fatal(err)
	}
	a.prevSPI[sealedBy(2, 0)] = sa.SPI // one confirmation is due
	for range 100 {
		if err := a.m.SPIRefused(w.now, sealedBy(2, 0), sa, 1); err != nil {
			t.Fatal(err)
		}
		w.advance(ms / 1000)
		w.settle()
	}
	if st := a.m.Stats(); st.SPIRefused != 100 || st.Rekeyed != 1 || b.openTo(1)[0].params.TxSPI != sa.SPI {
		t.Errorf("%d reported, told %d times", st.SPIRefused, st.Rekeyed)
	}
	w.checkRest()
	if err := a.m.SPIRefused(w.now, sealedBy(9, 0), sa, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown peer: %v", err)
	}
}

// TestBothAskedAgain: if a link loses a new SA and a request for one, both are sent again when it
// is back.
func TestBothAskedAgain(t *testing.T) {
	w, a, b := linked(t)
	spi := a.openTo(2)[0].params.TxSPI
	a.rekey(sealedBy(2, 0))
	if err := a.m.RequestRekey(sealedBy(2, 0), spi); err != nil {
		t.Fatal(err)
	}
	w.setLink(1, 2, false, func(int) int { return 0 })
	w.settle()
	if a.prevSPI[sealedBy(2, 0)] == 0 || b.m.Stats().RekeyRequests != 0 {
		t.Fatal("the link lost nothing")
	}
	w.setLink(1, 2, true, nil)
	for range 3 {
		w.advance(ms)
		w.settle()
	}
	if a.prevSPI[sealedBy(2, 0)] != 0 || b.m.Stats().RekeyRequests == 0 {
		t.Errorf("SA confirmed: %v, %d requests", a.prevSPI[sealedBy(2, 0)] == 0, b.m.Stats().RekeyRequests)
	}
	w.checkRest()
}

// TestANewSAIsRepeatedUntilConfirmed: a new SA is sent again each second until it is confirmed.
func TestANewSAIsRepeatedUntilConfirmed(t *testing.T) {
	w, a, b := linked(t)
	a.rekey(sealedBy(2, 0))
	w.advance(3500 * ms) // the peer handles nothing
	if n := len(b.inbox); n != 4 {
		t.Errorf("%d messages in 3.5 s, want 4", n)
	}
	w.settle()
	if n := a.m.Stats().Rekeyed; n != 1 {
		t.Errorf("confirmed %d times", n)
	}
	w.advance(10_000 * ms)
	if len(b.inbox) != 0 || a.m.Deadline() != math.MaxInt64 {
		t.Errorf("%d messages after it was confirmed, next timer %d", len(b.inbox), a.m.Deadline())
	}
}

// TestAPeerIsToldAKeyAgainOnlyAfterTheRetryTime: the peer is told a key again exactly when the
// retry time is over.
func TestAPeerIsToldAKeyAgainOnlyAfterTheRetryTime(t *testing.T) {
	w, a, _ := linked(t)
	w.now = 5 * ms
	sa, _ := a.RxSA(sealedBy(2, 0))
	told := func() uint64 {
		a.prevSPI[sealedBy(2, 0)] = sa.SPI // a confirmation may come
		if err := a.m.SPIRefused(w.now, sealedBy(2, 0), sa, 3); err != nil {
			t.Fatal(err)
		}
		a.m.Advance(w.now)
		a.drain()
		w.settle()
		return a.m.Stats().Rekeyed
	}
	for i, step := range []struct {
		after Time
		want  uint64
	}{{0, 1}, {0, 1}, {1000*ms - 1, 1}, {1, 2}, {1, 2}} {
		w.now += step.after
		if got := told(); got != step.want {
			t.Errorf("step %d: told %d times, want %d", i, got, step.want)
		}
	}
	if n := a.m.Stats().SPIRefused; n != 15 {
		t.Errorf("%d packets counted", n)
	}
}

// TestAConfirmationOfAReplacedSAIsIgnored: a confirmation of an SA that was replaced meanwhile is
// ignored.
func TestAConfirmationOfAReplacedSAIsIgnored(t *testing.T) {
	w, a, b := linked(t)
	a.rekey(sealedBy(2, 0))
	w.advance(ms)
	for b.deliver() { // it confirms the new one
	}
	old := REKEYACK{7, ClassFalcon, 0, a.prevSPI[sealedBy(2, 0)], 0}
	if err := a.m.Receive(w.now, 2, Encode(&old)); err != nil {
		t.Fatal(err)
	}
	if n := a.m.Stats().Rekeyed; n != 0 {
		t.Errorf("%d confirmed by the SPI of the one before", n)
	}
	w.settle()
	if n := a.m.Stats().Rekeyed; n != 1 {
		t.Errorf("confirmed %d times", n)
	}
}

// TestARequestForASAThatIsBeingReplacedIsNotCounted: a peer's request to replace an SA that is
// being replaced already is not passed on; one for the new SA is. A request is fulfilled only by
// another SA.
func TestARequestForASAThatIsBeingReplacedIsNotCounted(t *testing.T) {
	w, a, b := linked(t)
	old, _ := a.RxSA(sealedBy(2, 0))
	a.rekey(sealedBy(2, 0))
	next, _ := a.RxSA(sealedBy(2, 0))
	for _, step := range []struct {
		spi  uint32
		want uint64
	}{{old.SPI, 0}, {next.SPI, 1}} {
		q := REKEYREQ{7, ClassFalcon, 0, step.spi}
		if err := a.m.Receive(w.now, 2, Encode(&q)); err != nil {
			t.Fatal(err)
		}
		if n := a.m.Stats().RekeyRequests; n != step.want {
			t.Errorf("request for another than %#x: %d passed on, want %d", step.spi, n, step.want)
		}
	}

	u := sealedBy(1, 0)
	if err := b.m.RequestRekey(u, old.SPI); err != nil {
		t.Fatal(err)
	}
	p := b.m.peers.byID[1]
	b.m.keys.learn(p, u, old)
	if _, wanted := p.wants[u]; !wanted {
		t.Error("the SA that is used up fulfils the request for another")
	}
	b.m.keys.learn(p, u, next)
	if _, wanted := p.wants[u]; wanted {
		t.Error("another SA does not fulfil the request")
	}
}
