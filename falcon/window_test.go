package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase23_PSNPerWindow(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(2)
	s.pull(2)
	s.push(1)
	got := s.transmit()
	var rsns, data, req []uint32
	for _, p := range got {
		h := header(t, p.Packet)
		rsns = append(rsns, h.RSN)
		if p.Type == wire.TypePullRequest {
			req = append(req, h.PSN)
		} else {
			data = append(data, h.PSN)
		}
	}
	equal(t, "RSN", rsns, []uint32{1, 2, 3, 4, 5})
	equal(t, "data PSN", data, []uint32{300, 301, 302})
	equal(t, "request PSN", req, []uint32{100, 101})
}

func TestCase24_PSNRollover(t *testing.T) {
	p := newPair(t, func(_ *[2]falcon.Config, c *falcon.ConnConfig, _ *sim.Impairment) {
		c.TxReqPSN, c.TxDataPSN, c.TxRSN = 0xffffffff, 0xfffffffe, 0xffffffff
	})
	p.pull(p.a, 64, 1, 2, 3)
	p.push(p.a, 64, 4, 5, 6)
	p.run(ms)
	equal(t, "request PSNs", psns(t, p.packets(0, wire.TypePullRequest)), []uint32{0xffffffff, 0, 1})
	equal(t, "data PSNs", psns(t, p.packets(0, wire.TypePushData)), []uint32{0xfffffffe, 0xffffffff, 0})
	p.wantTags(0, falcon.EvPullDone, 1, 2, 3)
	p.wantTags(0, falcon.EvPushDone, 4, 5, 6)
	p.wantIdle()
}

func TestCase25_26_ReceiveWindows(t *testing.T) {
	for _, base := range []uint32{0, 200, 0xffffffe0} {
		p := testProfile()
		p.MaxTxn = 1024
		s := newSingle(t, p, func(c *falcon.ConnConfig) {
			c.Ordered, c.RxReqPSN, c.RxDataPSN, c.RxRSN = false, base, base, 0
		})
		s.ulp.OnPush = func(falcon.Time, *falcon.Event, uint64) {}
		s.want(s.pullRequest(base+63, 63, false), wire.DropNone)
		s.want(s.pullRequest(base+64, 64, false), wire.DropBeyondWindow)
		s.want(s.pullRequest(base-1, 65, false), wire.DropBehindWindow)
		s.want(s.pushData(base+127, 127, false), wire.DropNone)
		s.want(s.pushData(base+128, 128, false), wire.DropBeyondWindow)
		s.want(s.pushData(base-1, 129, false), wire.DropBehindWindow)
		var eack []sim.Sent
		for _, p := range s.advance(100 * us) {
			if p.Type == wire.TypeEACK {
				eack = append(eack, p)
			}
		}
		if len(eack) == 0 {
			t.Fatal("no EACK")
		}
		a := ack(t, eack[0].Packet)
		if !a.DataOWN || !a.ReqOWN || a.DataRx.Hi != 1<<63 || a.Req != 1<<63 {
			t.Errorf("base %d: EACK %+v", base, a)
		}
	}
}

func TestCase27_RequestWindowJumps(t *testing.T) {
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.RxReqPSN, c.RxRSN = 0, 0 })
	for i := uint32(1); i < 64; i++ {
		s.want(s.pullRequest(i, i, false), wire.DropNone)
	}
	s.want(s.pullRequest(0, 0, false), wire.DropNone)
	sent := only(s.transmit(), wire.TypePullData)
	if len(sent) == 0 || header(t, sent[0].Packet).ReqBase != 64 {
		t.Fatalf("request base not 64 in %d packets", len(sent))
	}
}

func TestCase28_AckProcessing(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(4)
	s.pull(2)
	s.transmit()
	s.now += 10 * us
	s.want(s.ack(wire.Ack{DataBase: 302, ReqBase: 101}), wire.DropNone)
	if n := s.count(falcon.EvPushDone); n != 2 {
		t.Errorf("%d pushes completed, want 2", n)
	}
	s.want(s.ack(wire.Ack{DataBase: 301, ReqBase: 102}), wire.DropStaleAck)
	s.want(s.ack(wire.Ack{DataBase: 303, ReqBase: 100}), wire.DropStaleAck)
	s.want(s.ack(wire.Ack{DataBase: 305, ReqBase: 101}), wire.DropImpossibleAck)
	if n := s.count(falcon.EvPushDone); n != 2 {
		t.Errorf("%d pushes completed after stale ACKs, want 2", n)
	}
	s.want(s.ack(wire.Ack{DataBase: 302, ReqBase: 101, Extended: true, DataAck: wire.Bitmap128{Lo: 0b10}, DataRx: wire.Bitmap128{Lo: 0b11}}), wire.DropNone)
	if n := s.count(falcon.EvPushDone); n != 2 {
		t.Errorf("%d pushes completed, want 2: the third is not acknowledged and order holds the fourth", n)
	}
	s.want(s.ack(wire.Ack{DataBase: 304, ReqBase: 102}), wire.DropNone)
	if n := s.count(falcon.EvPushDone); n != 4 {
		t.Errorf("%d pushes completed, want 4", n)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone) // with the first bases, which are stale
	if n := s.e.Stats().IgnoredAcks; n != 1 || s.count(falcon.EvPush) != 1 {
		t.Errorf("%d acknowledgements ignored, %d pushes taken, want 1 and 1", n, s.count(falcon.EvPush))
	}
}

// TestBasesInPackets: the bases in other packets acknowledge like those of an ACK, either one
// alone.
func TestBasesInPackets(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(1)
	s.pull(1)
	s.transmit()
	p := wire.PushData{Header: s.header(wire.TypePushData, 200, 7, false)}
	p.ReqBase++
	s.want(s.receive(p.Append(nil)), wire.DropNone)
	if i := s.c.Info(); i.RequestsInFlight != 0 || i.DataInFlight != 1 {
		t.Errorf("the request acknowledged: %d requests, %d data packets in flight, want 0 and 1", i.RequestsInFlight, i.DataInFlight)
	}
	p.PSN, p.RSN = 201, 8
	p.DataBase++
	s.want(s.receive(p.Append(nil)), wire.DropNone)
	if i := s.c.Info(); i.DataInFlight != 0 || s.count(falcon.EvPushDone) != 1 {
		t.Errorf("both acknowledged: %d data packets in flight", i.DataInFlight)
	}
}

func TestCase29_BackOrEack(t *testing.T) {
	noAnswer := func(falcon.Time, *falcon.Event, uint64) {}
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.RxDataPSN, c.RxRSN = 0, 0 })
	s.ulp.OnPush = noAnswer
	for i := range uint32(3) {
		s.pushData(i, i, false)
	}
	if got := s.advance(20 * us); len(got) != 1 || got[0].Type != wire.TypeBACK {
		t.Errorf("contiguous but not acknowledged: %v, want one BACK", got)
	}
	s.pushData(5, 5, false)
	got := s.advance(20 * us)
	if len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Fatalf("hole: %v, want one EACK", got)
	}
	if a := ack(t, got[0].Packet); a.DataRx.Lo != 0b100111 || a.DataAck.Lo != 0 || a.DataBase != 0 {
		t.Errorf("EACK %+v", a)
	}
	s.c.AckPush(s.now, 1)
	got = s.advance(20 * us)
	if len(got) != 1 || got[0].Type != wire.TypeEACK {
		t.Fatalf("acknowledged out of order: %v, want one EACK", got)
	}
	if a := ack(t, got[0].Packet); a.DataAck.Lo != 0b10 {
		t.Errorf("EACK %+v", a)
	}
}

func TestCase30_OwnClearedByEack(t *testing.T) {
	s := newSingle(t, testProfile())
	s.want(s.pullRequest(500+64, 7, false), wire.DropBeyondWindow)
	got := s.advance(20 * us)
	if len(got) != 1 || got[0].Type != wire.TypeEACK || !ack(t, got[0].Packet).ReqOWN || ack(t, got[0].Packet).DataOWN {
		t.Fatalf("sent %v", got)
	}
	s.pullRequest(500, 7, true)
	acks := s.transmit()
	for _, p := range acks {
		if p.Type == wire.TypeEACK {
			t.Errorf("still an EACK after the notification")
		}
	}
}

// TestAnAcknowledgementBeyondWhatWasSentIsDropped: an acknowledgement may cover all packets that were sent, in either window,
// and not one more.
func TestAnAcknowledgementBeyondWhatWasSentIsDropped(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(3)
	s.pull(2)
	s.transmit()
	s.want(s.ack(wire.Ack{ReqBase: 103}), wire.DropImpossibleAck)
	s.want(s.ack(wire.Ack{DataBase: 304}), wire.DropImpossibleAck)
	s.want(s.ack(wire.Ack{DataBase: 303, ReqBase: 103}), wire.DropImpossibleAck)
	if n := s.count(falcon.EvPushDone); n != 0 {
		t.Errorf("%d completions", n)
	}
	s.want(s.ack(wire.Ack{DataBase: 303, ReqBase: 102}), wire.DropNone)
	if n := s.count(falcon.EvPushDone); n != 3 {
		t.Errorf("%d completions, want 3", n)
	}
}
