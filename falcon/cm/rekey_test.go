package cm

import (
	"errors"
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

// TestRekey: a new SA reaches the peer once, is confirmed, and the request of
// a sender whose SA is used up brings one.
func TestRekey(t *testing.T) {
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

// TestRekeyOutage: nothing is lost while the link is down. When it is back, the newest SA is sent,
// without waiting for a timer.
func TestRekeyOutage(t *testing.T) {
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

// TestRekeyWhileConnecting: if an SA is replaced between request and answer, the connection starts
// with the new one.
func TestRekeyWhileConnecting(t *testing.T) {
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

func TestRekeyRefused(t *testing.T) {
	w, a, b := linked(t)
	good, _ := a.RxSA(sealedBy(2, 0))
	for _, tc := range []struct {
		use  Use
		sa   SA
		want error
	}{
		{Use{3, 0, 7, ClassFalcon}, good, ErrNotFound},
		{Use{2, 0, 8, ClassFalcon}, good, ErrNotFound},
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
	for _, m := range []message{&REKEY{8, ClassFalcon, 0, good}, &REKEYREQ{8, ClassFalcon, 0, 0}} { // a tenant not shared
		before := b.m.Stats().TenantRefused
		if err := b.m.Receive(w.now, 1, m.Append(nil)); err != nil {
			t.Error(err)
		}
		if b.m.Stats().TenantRefused != before+1 {
			t.Errorf("%T of a foreign tenant was not refused", m)
		}
	}
	ack := REKEYACK{7, ClassFalcon, 0, 99, 0} // of an SA nobody gave out
	if err := b.m.Receive(w.now, 1, ack.Append(nil)); err != nil {
		t.Error(err)
	}
	b.drain()
	w.checkRest()
}

// TestSPIRefused: the connection manager learns of a packet with a wrong SPI and tells the peer
// again which key to use, but not for every packet (Falcon §9.2.2.3).
func TestSPIRefused(t *testing.T) {
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
