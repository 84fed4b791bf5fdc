package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestCase66_EveryCompletionCode reaches each code of Falcon §11, and with it each reason of a
// Resync (§7.6), by its cause. Transaction 1 is examined. If the connection survives, transaction 2
// must succeed.
func TestCase66_EveryCompletionCode(t *testing.T) {
	nackPush := func(code wire.NackCode) func(*pair) {
		return func(p *pair) {
			p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
				if key == 1 {
					ev.Conn.NackPush(now, ev.RSN, code, 0, 7)
					return
				}
				ev.Conn.AckPush(now, ev.RSN)
			}
			p.push(p.a, 100, 1)
		}
	}
	nackPull := func(code wire.NackCode) func(*pair) {
		return func(p *pair) {
			p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, _ uint64) {
				ev.Conn.NackPush(now, ev.RSN, code, 0, 7)
			}
			p.pull(p.a, 100, 1)
		}
	}
	for _, c := range []struct {
		name   string
		run    func(*pair)
		edit   func(*falcon.ConnConfig)
		want   falcon.Completion
		resync wire.ResyncCode // sent by the initiator, 0: none
		dead   bool
	}{
		{name: "push accepted", run: func(p *pair) { p.push(p.a, 100, 1) }, want: falcon.CmplAck},
		{name: "pull answered", run: func(p *pair) { p.pull(p.a, 100, 1) }, want: falcon.CmplAck},
		{name: "CIE", run: nackPush(wire.NackCIE), want: falcon.CmplTargetNackCIE, resync: wire.ResyncCIE},
		{name: "NRE", run: nackPush(wire.NackNRE), want: falcon.CmplTargetNackNRE, resync: wire.ResyncNRE},
		{name: "CID, push", run: nackPush(wire.NackCID), want: falcon.CmplTargetNackCID, resync: wire.ResyncCID},
		{name: "CID, pull", run: nackPull(wire.NackCID), want: falcon.CmplTargetNackCID},
		{name: "remote xLR, push", run: nackPush(wire.NackXLR), want: falcon.CmplRemoteErr, resync: wire.ResyncRemoteXLR},
		{name: "remote xLR, pull", run: nackPull(wire.NackXLR), want: falcon.CmplRemoteErr},
		{name: "remote Fill error", run: func(p *pair) {
			p.ulp[1].FillError = func(falcon.TxnKind, uint64) bool { return true }
			p.pull(p.a, 100, 1)
		}, want: falcon.CmplRemoteErr},
		{name: "local Fill error", run: func(p *pair) {
			p.ulp[0].FillError = func(_ falcon.TxnKind, tag uint64) bool { return tag == 1 }
			p.push(p.a, 100, 1)
		}, want: falcon.CmplLocalXlr, resync: wire.ResyncLocalXLR},
		{name: "retransmissions exhausted", run: func(p *pair) {
			p.dropNth(0, wire.TypePushData, 1, 2, 3, 4)
			p.push(p.a, 100, 1)
		}, want: falcon.CmplLocalTO, resync: wire.ResyncRetransmit},
		{name: "timed out, push", run: func(p *pair) {
			p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
				if key != 1 {
					ev.Conn.AckPush(now, ev.RSN)
				}
			}
			p.push(p.a, 100, 1)
		}, want: falcon.CmplLocalTO, resync: wire.ResyncTimeout},
		{name: "timed out, pull", run: func(p *pair) {
			p.ulp[1].OnPull = noAnswer
			p.pull(p.a, 100, 1)
		}, want: falcon.CmplLocalTO},
		{name: "response too long", run: func(p *pair) {
			p.ulp[1].OnPull = noAnswer
			p.pull(p.a, 100, 1)
			p.run(10 * us)
			h := wire.Header{
				CID: p.a.Config().LocalCID, Function: p.a.Config().LocalFunction, Protocol: wire.ProtocolRDMA, Type: wire.TypePullData,
				DataBase: 300, ReqBase: 101, PSN: 200, RSN: 1,
			}
			p.ae.Receive(p.Now, falcon.Packet{Data: append(h.Append(nil), make([]byte, 101)...)})
		}, want: falcon.CmplOpErr},
		{name: "no credit left", edit: func(cfg *falcon.ConnConfig) {
			cfg.NoFlowControl, cfg.CreditLimit = true, credit.Cost{1, 100, 1, 100, 1, 100}
		}, run: func(p *pair) { p.push(p.a, 100, 2, 1) }, want: falcon.CmplLocalRsrc},
		{name: "more than all credit", edit: func(cfg *falcon.ConnConfig) {
			cfg.NoFlowControl, cfg.CreditLimit = true, credit.Cost{4, 3, 4, 3, 1, 1}
		}, run: func(p *pair) { p.pull(p.a, 100, 2); p.push(p.a, 4000, 1) }, want: falcon.CmplUlpCdtErr},
		{name: "connection closed", run: func(p *pair) { p.push(p.a, 100, 1); p.a.Close(p.Now) }, want: falcon.CmplDeadConn, dead: true},
		{name: "peer gone", run: func(p *pair) {
			p.Links[0].Set(sim.Impairment{Down: true})
			p.push(p.a, 100, 2)
			p.run(6 * ms) // the Resync that replaced it is about to be given up
			p.push(p.a, 100, 1)
		}, want: falcon.CmplDeadConn, dead: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, func(cfg *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
				cfg[0].Profile.MaxRetransmits, cfg[0].Profile.TxnTimeout = 3, 8*ms
				if c.resync == wire.ResyncTimeout {
					cfg[0].Profile.MaxRetransmits = 100
				}
				if c.name == "peer gone" {
					cfg[0].Profile.TxnTimeout = 0
				}
				if c.edit != nil {
					c.edit(conn)
				}
			})
			c.run(p)
			p.run(20 * ms)
			codes := map[uint64]falcon.Completion{}
			for _, e := range p.ulp[0].Events {
				if e.Kind == falcon.EvPushDone || e.Kind == falcon.EvPullDone {
					if _, twice := codes[e.Tag]; twice {
						t.Errorf("transaction %d completed twice", e.Tag)
					}
					codes[e.Tag] = e.Code
				}
			}
			if got, ok := codes[1]; !ok || got != c.want {
				t.Errorf("completed %v with %v, want %v", ok, got, c.want)
			}
			var reason wire.ResyncCode
			for _, s := range p.packets(0, wire.TypeResync) {
				r, _ := wire.ParseResync(s.Packet)
				reason = r.Code
			}
			if reason != c.resync && !c.dead {
				t.Errorf("Resync for %v, want %v", reason, c.resync)
			}
			if c.dead {
				return
			}
			if _, ok := codes[2]; !ok {
				p.ulp[1].OnPull, p.ulp[1].OnPush, p.ulp[1].FillError = nil, nil, nil
				p.push(p.a, 100, 2)
				p.run(20 * ms)
			}
			for _, e := range p.ulp[0].Events {
				if e.Tag == 2 && e.Code != falcon.CmplAck {
					t.Errorf("the next transaction: %v", e.Code)
				}
			}
			if st := p.ae.Stats(); st.TxContexts != 0 || st.CreditErrors != 0 {
				t.Errorf("left: %+v", st)
			}
		})
	}
}

// TestCase65_ResyncReasons: a Resync fills its hole whatever its reason, a reserved one too.
func TestCase65_ResyncReasons(t *testing.T) {
	s := newSingle(t, testProfile())
	for code := range 256 {
		n := uint32(code)
		r := wire.Resync{Header: s.header(wire.TypeResync, 200+n, 7+n, false), Code: wire.ResyncCode(code), Original: wire.TypePushData}
		s.want(s.receive(r.Append(nil)), wire.DropNone)
		if got := s.transmit(); len(got) != 1 || ack(t, got[0].Packet).DataBase != 201+n {
			t.Fatalf("code %d: sent %v", code, got)
		}
	}
	s.want(s.pushData(456, 263, false), wire.DropNone)
	if n := s.count(falcon.EvPush); n != 1 {
		t.Errorf("%d deliveries, want the push behind the holes", n)
	}
}

// TestCase58_ReservedNackCodes: each is counted, refuses nothing, and its acknowledgement counts.
func TestCase58_ReservedNackCodes(t *testing.T) {
	s := newSingle(t, windows(300, 300))
	reserved := uint64(0)
	for code := range 256 {
		if wire.NackCode(code).Valid() {
			continue
		}
		reserved++
		s.push(1)
		s.transmit()
		n := wire.Nack{
			CID: s.c.Config().LocalCID, DataBase: 300 + uint32(reserved) - 1, ReqBase: 100, PSN: 300 + uint32(reserved) - 1,
			Code: wire.NackCode(code),
		}
		s.want(s.receive(n.Append(nil)), wire.DropNackCode)
		if got := s.transmit(); len(got) != 0 {
			t.Fatalf("code %d: sent %v", code, got)
		}
	}
	if got := s.e.Stats().Drops[wire.DropNackCode]; got != reserved || s.count(falcon.EvPushDone) != int(reserved)-1 {
		t.Errorf("%d counted of %d, %d acknowledged", got, reserved, s.count(falcon.EvPushDone))
	}
}

// TestNVMe: the protocol belongs to the connection; packets of another one are dropped and counted.
func TestNVMe(t *testing.T) {
	p := newPair(t, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) {
		conn.Protocol = wire.ProtocolNVMe
	})
	p.push(p.a, 100, 1, 2)
	p.pull(p.b, 100, 3)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2)
	p.wantTags(1, falcon.EvPullDone, 3)
	for _, s := range p.Trace {
		if s.Type.HasBase() && header(t, s.Packet).Protocol != wire.ProtocolNVMe {
			t.Errorf("sent %v", header(t, s.Packet))
		}
	}
	p.wantIdle()
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Protocol = wire.ProtocolNVMe })
	h := s.header(wire.TypePullData, 200, 1, false)
	h.Protocol = wire.ProtocolRDMA
	s.want(s.receive(h.Append(nil)), wire.DropProtocol)
	if s.e.Stats().Drops[wire.DropProtocol] != 1 || len(s.transmit()) != 0 {
		t.Error("a packet of another protocol was not just counted")
	}
}
