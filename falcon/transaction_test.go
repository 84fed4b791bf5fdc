package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestCase01_SinglePush(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Credits = node
		conn.TxDataPSN, conn.TxRSN = 0, 0
	})
	p.push(p.a, 1000, 11)
	if node.InUse() == (credit.Cost{}) {
		t.Error("no credits taken")
	}
	p.run(ms)
	p.wantKeys(1, falcon.EvPush, 11)
	p.wantTags(0, falcon.EvPushDone, 11)
	equal(t, "sent by initiator", p.sent(0), []wire.PacketType{wire.TypePushData})
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypeBACK})
	h := header(t, p.packets(0, wire.TypePushData)[0].Packet)
	if h.PSN != 0 || h.RSN != 0 {
		t.Errorf("PSN %d RSN %d, want 0 0", h.PSN, h.RSN)
	}
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits not returned: %v", node.InUse())
	}
	p.wantIdle()
}

func TestCase02_PullAnsweredAtOnce(t *testing.T) {
	p := newPair(t)
	p.pull(p.a, 4096, 21)
	p.run(ms)
	p.wantKeys(1, falcon.EvPull, 21)
	p.wantTags(0, falcon.EvPullDone, 21)
	p.wantTags(1, falcon.EvResponseDone, 21)
	equal(t, "sent by initiator", p.sent(0), []wire.PacketType{wire.TypePullRequest, wire.TypeBACK})
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypePullData})
	p.wantIdle()
}

func TestCase03_PullAnsweredAfterCoalescing(t *testing.T) {
	p := newPair(t)
	var conn *falcon.Conn
	var rsn uint32
	p.ulp[1].OnPull = func(_ falcon.Time, ev *falcon.Event, _ uint64) { conn, rsn = ev.Conn, ev.RSN }
	p.pull(p.a, 100, 31)
	p.run(100 * us)
	if err := conn.RespondPull(p.Now, rsn, 31, 100); err != nil {
		t.Fatal(err)
	}
	p.run(ms)
	p.wantTags(0, falcon.EvPullDone, 31)
	equal(t, "sent by target", p.sent(1), []wire.PacketType{wire.TypeBACK, wire.TypePullData})
	p.wantIdle()
}

func TestCase04_DropRequest(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePushData, 1)
	p.push(p.a, 100, 41)
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 41)
	p.wantTags(0, falcon.EvPushDone, 41)
	sent := p.packets(0, wire.TypePushData)
	if len(sent) != 2 {
		t.Fatalf("%d copies sent, want 2", len(sent))
	}
	if a, b := header(t, sent[0].Packet).PSN, header(t, sent[1].Packet).PSN; a != b {
		t.Errorf("PSN %d retransmitted as %d", a, b)
	}
	p.wantIdle()
}

func TestCase05_DropAck(t *testing.T) {
	p := newPair(t)
	p.dropNth(1, wire.TypeBACK, 1)
	p.push(p.a, 100, 51)
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 51)
	p.wantTags(0, falcon.EvPushDone, 51)
	if n := len(p.packets(1, wire.TypeBACK)); n != 2 {
		t.Errorf("%d ACKs, want 2", n)
	}
	p.wantIdle()
}

func TestCase06_MultiplePushesDropFirst(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePushData, 1)
	p.push(p.a, 100, 1, 2, 3)
	p.run(50 * us)
	if s := p.be.Stats(); s.RxCells != 2 {
		t.Errorf("%d packets held, want 2", s.RxCells)
	}
	if n := len(p.packets(1, wire.TypeEACK)); n == 0 {
		t.Error("no EACK")
	}
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPush, 1, 2, 3)
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3)
	p.wantIdle()
}

func TestCase07_MultiplePullsDropFirst(t *testing.T) {
	p := newPair(t)
	p.dropNth(0, wire.TypePullRequest, 1)
	p.pull(p.a, 256, 1, 2, 3)
	p.run(50 * us)
	acks := p.packets(1, wire.TypeEACK)
	if len(acks) == 0 {
		t.Fatal("no EACK")
	}
	if a := ack(t, acks[0].Packet); a.Req != 0b110 {
		t.Errorf("request bitmap %b, want 110", a.Req)
	}
	p.run(10 * ms)
	p.wantKeys(1, falcon.EvPull, 1, 2, 3)
	p.wantTags(0, falcon.EvPullDone, 1, 2, 3)
	p.wantIdle()
}

func TestCase08_MultiplePullsDropResponse(t *testing.T) {
	p := newPair(t)
	p.dropNth(1, wire.TypePullData, 1)
	p.pull(p.a, 256, 1, 2, 3)
	p.run(50 * us)
	if n := len(p.events(0, falcon.EvPullDone)); n != 0 {
		t.Errorf("%d completions before the first response", n)
	}
	p.run(10 * ms)
	p.wantTags(0, falcon.EvPullDone, 1, 2, 3)
	p.wantKeys(0, falcon.EvPullDone, 1, 2, 3)
	equal(t, "pull requests", p.sent(0)[:3], []wire.PacketType{wire.TypePullRequest, wire.TypePullRequest, wire.TypePullRequest})
	p.wantIdle()
}

func TestCase09_Xoff(t *testing.T) {
	node := credit.New(nil, credit.Cost{4, 1 << 20, 4, 1 << 20, 8, 1 << 20})
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) { cfg[0].Credits = node })
	p.push(p.a, 100, 1, 2, 3, 4)
	if err := p.a.Push(p.Now, 5, 100); err != falcon.ErrXoff {
		t.Fatalf("fifth push: %v, want Xoff", err)
	}
	// Responses do not need request credits: the peer's pull is answered while Xoff holds.
	p.Links[0].Set(sim.Impairment{Delay: 5 * us})
	p.pull(p.b, 64, 9)
	p.run(ms)
	p.wantTags(1, falcon.EvPullDone, 9)
	if n := len(p.events(0, falcon.EvCredit)); n != 1 {
		t.Fatalf("%d EvCredit, want 1", n)
	}
	p.push(p.a, 100, 5)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3, 4, 5)
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits not returned: %v", node.InUse())
	}
	p.wantIdle()
}

func TestCase16_17_ReorderedRequests(t *testing.T) {
	for _, kind := range []string{"push", "pull"} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			if kind == "push" {
				p.delayNth(0, wire.TypePushData, 1, 2*us)
				p.push(p.a, 100, 1, 2)
			} else {
				p.delayNth(0, wire.TypePullRequest, 1, 2*us)
				p.ulp[1].OnPull = func(falcon.Time, *falcon.Event, uint64) {} // answered never: only the request's ACK
				p.pull(p.a, 100, 1, 2)
			}
			p.run(100 * us)
			ev, first := falcon.EvPush, wire.TypePushData
			if kind == "pull" {
				ev, first = falcon.EvPull, wire.TypePullRequest
			}
			p.wantKeys(1, ev, 1, 2)
			if s := p.packets(0, first); len(s) != 2 {
				t.Errorf("%d packets sent, want 2", len(s))
			}
			equal(t, "one coalesced ACK", p.sent(1), []wire.PacketType{wire.TypeBACK})
		})
	}
}

func TestCase19_CompletionOrder(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		p := newPair(t, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) { conn.Ordered = ordered })
		p.dropNth(0, wire.TypePushData, 1)
		p.push(p.a, 100, 1, 2, 3)
		p.run(10 * ms)
		if ordered {
			p.wantTags(0, falcon.EvPushDone, 1, 2, 3)
			p.wantKeys(1, falcon.EvPush, 1, 2, 3)
		} else {
			p.wantTags(0, falcon.EvPushDone, 2, 3, 1)
			p.wantKeys(1, falcon.EvPush, 2, 3, 1)
		}
		p.wantIdle()
	}
}

func TestCase22_ZeroLengthPullData(t *testing.T) {
	p := newPair(t)
	p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
		_ = ev.Conn.RespondPull(now, ev.RSN, key, 0)
	}
	p.pull(p.a, 512, 1)
	p.run(ms)
	ev := p.events(0, falcon.EvPullDone)
	if len(ev) != 1 || ev[0].Code != falcon.CmplAck || ev[0].Length != 0 {
		t.Fatalf("completion %+v", ev)
	}
	p.push(p.a, 64, 2)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 2)
	p.wantIdle()
}
