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
		{name: "more than all credit", edit: func(cfg *falcon.ConnConfig) {
			cfg.Credits = credit.New(nil, credit.Cost{4, 3, 4, 3, 1, 1})
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

// TestPacketsOfAnotherProtocolAreDropped: the protocol belongs to the connection; packets of another one are dropped and counted.
func TestPacketsOfAnotherProtocolAreDropped(t *testing.T) {
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

func TestCase13_PushRNR(t *testing.T) {
	p := newPair(t)
	tries := 0
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		if tries++; tries == 1 {
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 17, 0) // 3.84 ms
			return
		}
		ev.Conn.AckPush(now, ev.RSN)
	}
	start := p.Now
	p.push(p.a, 100, 1, 2, 3)
	p.run(50 * ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2, 3)
	p.wantKeys(1, falcon.EvPush, 1, 1, 2, 3)
	if at := p.events(1, falcon.EvPush)[1].At; at < start+3840*us || at > start+3860*us {
		t.Errorf("delivered again after %d µs", (at-start)/us)
	}
	if n := len(p.packets(1, wire.TypeNACK)); n != 3 {
		t.Errorf("%d NACKs, want one for each push", n)
	}
	p.wantIdle()
}

func TestCase14_18_PullRNR(t *testing.T) {
	p := newPair(t)
	tries := 0
	p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
		if tries++; tries == 1 {
			ev.Conn.RNRPull(now, ev.RSN, 11) // 0.48 ms
			return
		}
		if err := ev.Conn.RespondPull(now, ev.RSN, key, ev.Length); err != nil {
			t.Error(err)
		}
	}
	start := p.Now
	p.pull(p.a, 100, 1, 2)
	p.run(10 * ms)
	p.wantTags(0, falcon.EvPullDone, 1, 2)
	p.wantKeys(1, falcon.EvPull, 1, 1, 2)
	if at := p.events(1, falcon.EvPull)[1].At; at != start+5*us+480*us {
		t.Errorf("delivered again after %d ns", at-start)
	}
	if n := len(p.packets(1, wire.TypeNACK)); n != 0 {
		t.Errorf("%d NACKs on the wire, want none", n)
	}
	req, data := p.packets(0, wire.TypePullRequest), p.packets(1, wire.TypePullData)
	if len(req) != 2 || len(data) != 2 {
		t.Fatalf("%d requests, %d responses, want 2 of each", len(req), len(data))
	}
	if h := header(t, req[0].Packet); h.PSN != 100 || h.RSN != 1 {
		t.Errorf("request PSN %d RSN %d", h.PSN, h.RSN)
	}
	if h := header(t, data[0].Packet); h.PSN != 200 || h.RSN != 1 {
		t.Errorf("response PSN %d RSN %d", h.PSN, h.RSN)
	}
	p.wantIdle()
}

func TestCase20_PullDataUnknown(t *testing.T) {
	s := newSingle(t, ackProfile(1, 100*us))
	s.want(s.pullData(200, 99, 64), wire.DropUnknownRSN)
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).DataBase != 201 {
		t.Errorf("sent %v, want it acknowledged", got)
	}
	s.push(1)
	s.transmit()
	s.want(s.pullData(201, 1, 64), wire.DropUnknownRSN) // RSN of a push
	if len(s.ulp.Events) != 0 {
		t.Errorf("events %v", s.ulp.Events)
	}
}

func TestCase21_PullDataLength(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(2)
	s.transmit()
	s.want(s.pullData(200, 1, 65), wire.DropPullLength)
	s.want(s.pullData(201, 2, 10), wire.DropNone)
	ev := s.ulp.Events
	if len(ev) != 2 || ev[0].Code != falcon.CmplOpErr || ev[1].Code != falcon.CmplAck || ev[1].Length != 10 {
		t.Errorf("events %+v", ev)
	}
}

func TestCase65_ResyncFirst(t *testing.T) {
	s := newSingle(t, testProfile())
	s.want(s.resync(200, 7, wire.TypePushData), wire.DropNone)
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).DataBase != 201 {
		t.Fatalf("sent %v", got)
	}
	s.want(s.pushData(200, 7, false), wire.DropBehindWindow)
	s.want(s.resync(500, 8, wire.TypePullRequest), wire.DropNone)
	got = s.transmit()
	if len(got) != 1 || ack(t, got[0].Packet).ReqBase != 501 {
		t.Fatalf("sent %v", got)
	}
	s.want(s.pullRequest(500, 8, false), wire.DropBehindWindow)
	// The order continues behind the RSNs that were filled in.
	s.want(s.pushData(201, 9, false), wire.DropNone)
	if n := s.count(falcon.EvPush); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
}

func TestCase66_Refusals(t *testing.T) {
	for _, c := range []struct {
		nack   wire.NackCode
		want   falcon.Completion
		resync wire.ResyncCode
	}{
		{wire.NackCIE, falcon.CmplTargetNackCIE, wire.ResyncCIE},
		{wire.NackNRE, falcon.CmplTargetNackNRE, wire.ResyncNRE},
		{wire.NackCID, falcon.CmplTargetNackCID, wire.ResyncCID},
		{wire.NackXLR, falcon.CmplRemoteErr, wire.ResyncRemoteXLR},
	} {
		for _, lose := range []bool{false, true} {
			p := newPair(t)
			if lose { // Falcon §6.6.5: the first NACK is lost, the retransmission gets the same again
				p.dropNth(1, wire.TypeNACK, 1)
			}
			p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
				if key == 2 {
					ev.Conn.NackPush(now, ev.RSN, c.nack, 0, 0x21)
					return
				}
				ev.Conn.AckPush(now, ev.RSN)
			}
			p.push(p.a, 100, 1, 2, 3)
			p.run(20 * ms)
			ev := p.events(0, falcon.EvPushDone)
			if len(ev) != 3 || ev[1].Code != c.want || ev[0].Code != falcon.CmplAck || ev[2].Code != falcon.CmplAck {
				t.Fatalf("%v: completions %+v", c.nack, ev)
			}
			if c.nack != wire.NackXLR && ev[1].ULPCode != 0x21 {
				t.Errorf("%v: ULP code %#x", c.nack, ev[1].ULPCode)
			}
			r, _ := wire.ParseResync(p.packets(0, wire.TypeResync)[0].Packet)
			if r.Code != c.resync || r.PSN != 301 || r.RSN != 2 {
				t.Errorf("%v: Resync %+v", c.nack, r)
			}
			p.wantKeys(1, falcon.EvPush, 1, 2, 3)
			p.wantIdle()
		}
	}
}

func TestCase67_DuplicateResync(t *testing.T) {
	s := newSingle(t, testProfile())
	s.resync(201, 8, wire.TypePushData)
	s.transmit()
	s.want(s.resync(201, 8, wire.TypePushData), wire.DropDuplicate)
	got := s.transmit()
	if len(got) != 1 || got[0].Type != wire.TypeEACK || ack(t, got[0].Packet).DataAck != bits(1) {
		t.Errorf("sent %v, want an EACK with the PSN", got)
	}
}

// TestCase68_InvalidCID: the ULP refuses a request of a stranger; a push ends by a Resync, a pull
// by the NACK alone.
func TestCase68_InvalidCID(t *testing.T) {
	p := newPair(t)
	p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		ev.Conn.NackPush(now, ev.RSN, wire.NackCID, 0, 0)
	}
	p.pull(p.a, 100, 1)
	p.push(p.a, 100, 2)
	p.run(20 * ms)
	ev := p.events(0, falcon.EvPullDone)
	if len(ev) != 1 || ev[0].Code != falcon.CmplTargetNackCID {
		t.Errorf("pull: %+v", ev)
	}
	p.wantTags(0, falcon.EvPushDone, 2)
	p.wantIdle()
}

func TestCase69_Order(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Ordered, c.RxRSN = ordered, 0 })
		s.pushData(200, 0, false)
		s.pushData(202, 2, false)
		s.pushData(201, 1, false)
		var got []uint32
		for _, e := range s.ulp.Events {
			got = append(got, e.RSN)
		}
		want := []uint32{0, 2, 1}
		if ordered {
			want = []uint32{0, 1, 2}
		}
		equal(t, "deliveries", got, want)
	}
}

func TestCase70_CloseDropsState(t *testing.T) {
	node := credit.New(nil, credit.NoLimit())
	s := newSingle(t, testProfile(), func(c *falcon.ConnConfig) { c.Credits = node })
	s.ulp.OnPush = noAnswer
	s.pushData(200, 7, false)
	s.pushData(202, 9, false)
	s.pullRequest(501, 10, false)
	s.pull(2)
	s.push(2)
	s.transmit()
	s.pullData(203, 2, 64) // waits for RSN 1
	s.push(1)
	s.c.Close(s.now)
	s.drain()
	s.c.AckPush(s.now, 7)
	if err := s.c.Push(s.now, 1, 1); err != falcon.ErrClosed {
		t.Errorf("push after close: %v", err)
	}
	s.want(s.pushData(203, 10, false), wire.DropUnknownCID)
	if st := s.e.Stats(); st.RxCells != 0 || st.RxContexts != 0 || st.TxContexts != 0 || st.Conns != 0 {
		t.Errorf("left: %+v", st)
	}
	if node.InUse() != (credit.Cost{}) {
		t.Errorf("credits left: %v", node.InUse())
	}
	if got := s.advance(1000 * ms); len(got) != 0 {
		t.Errorf("sent %v after close", got)
	}
	kinds := map[falcon.EventKind]int{}
	for _, e := range s.ulp.Events {
		kinds[e.Kind]++
	}
	if kinds[falcon.EvPullDone] != 2 || kinds[falcon.EvPushDone] != 3 || kinds[falcon.EvClosed] != 1 {
		t.Errorf("events %v", kinds)
	}
}

func TestAFillErrorFailsOnlyItsTransaction(t *testing.T) {
	p := newPair(t)
	p.ulp[0].FillError = func(_ falcon.TxnKind, tag uint64) bool { return tag == 2 || tag == 4 }
	p.ulp[1].FillError = func(kind falcon.TxnKind, tag uint64) bool { return kind == falcon.TxnPullData && tag == 5 }
	p.push(p.a, 100, 1, 2, 3)
	p.pull(p.a, 100, 4, 5, 6)
	p.run(20 * ms)
	var codes []falcon.Completion
	for _, e := range p.ulp[0].Events {
		if e.Kind == falcon.EvPushDone || e.Kind == falcon.EvPullDone {
			codes = append(codes, e.Code)
		}
	}
	equal(t, "completions", codes, []falcon.Completion{falcon.CmplAck, falcon.CmplLocalXlr, falcon.CmplAck, falcon.CmplLocalXlr, falcon.CmplRemoteErr, falcon.CmplAck})
	if n := len(p.events(1, falcon.EvResponseDone)); n != 2 {
		t.Errorf("%d responses done, want 2", n)
	}
	p.wantIdle()
}

// TestAnRNRWithdrawsTheEventsOfLaterRequests: an RNR cancels the events of later requests that were not taken yet.
func TestAnRNRWithdrawsTheEventsOfLaterRequests(t *testing.T) {
	s := newSingle(t, testProfile())
	first := true
	s.ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		if first {
			first = false
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 1, 0)
			return
		}
		ev.Conn.AckPush(now, ev.RSN)
	}
	// 9 and 8 wait; 7 lets three events appear at once, of which the first is refused.
	s.pushData(202, 9, false)
	s.pullRequest(500, 10, false)
	s.pushData(201, 8, false)
	s.pushData(200, 7, false)
	if n := len(s.ulp.Events); n != 1 {
		t.Fatalf("%d events, want the refused one", n)
	}
	nacks := only(s.transmit(), wire.TypeNACK)
	if len(nacks) != 3 {
		t.Errorf("%d NACKs, want one for each push", len(nacks))
	}
	s.want(s.pushData(201, 8, false), wire.DropNotReady)
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pushData(201, 8, false), wire.DropNone)
	s.want(s.pushData(202, 9, false), wire.DropNone)
	var got []uint32
	for _, e := range s.ulp.Events[1:] {
		if e.Kind == falcon.EvPush || e.Kind == falcon.EvPull {
			got = append(got, e.RSN)
		}
	}
	equal(t, "deliveries", got, []uint32{7, 8, 9, 10})
}

// TestWithdrawnEventOvertakes: an event cancelled by an RNR stays cancelled if its request arrives
// again before the event is taken.
func TestWithdrawnEventOvertakes(t *testing.T) {
	s := newSingle(t, testProfile())
	receive := func(psn, rsn uint32) wire.Drop {
		p := wire.PushData{Header: s.header(wire.TypePushData, psn, rsn, false), RequestLength: 8}
		return s.e.Receive(s.now, falcon.Packet{Data: append(p.Append(nil), 0, 0, 0, 0, 0, 0, 0, byte(rsn))})
	}
	receive(200, 7)
	receive(201, 8)
	var ev falcon.Event
	if !s.e.Next(&ev) || ev.RSN != 7 {
		t.Fatalf("event %+v", ev)
	}
	s.c.NackPush(s.now, 7, wire.NackRNR, 1, 0)
	s.want(receive(200, 7), wire.DropNone)
	s.want(receive(201, 8), wire.DropNone)
	var got []uint32
	for s.e.Next(&ev) {
		got = append(got, ev.RSN)
		s.c.AckPush(s.now, ev.RSN)
	}
	equal(t, "deliveries", got, []uint32{7, 8})
}

// TestRNRIsPatient: a receiver that is not ready counts as alive, whatever the limits for a silent
// one.
func TestRNRIsPatient(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Profile.MaxRetransmits, cfg[0].Profile.GiveUp, cfg[0].Profile.TxnTimeout = 2, 45*ms, 50*ms
	})
	tries := 0
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) {
		if tries++; tries <= 10 {
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 24, 0) // 40.96 ms
			return
		}
		ev.Conn.AckPush(now, ev.RSN)
	}
	p.push(p.a, 100, 1, 2)
	p.pull(p.a, 100, 3)
	p.dropNth(0, wire.TypePushData, 5, 8, 11) // retransmissions long after the first transmission
	p.run(1000 * ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2)
	p.wantTags(0, falcon.EvPullDone, 3)
	p.wantIdle()
}

// TestPullDataBeatsResync: if a pull's request seemed lost, the response still completes the pull,
// and no Resync is needed any more.
func TestPullDataBeatsResync(t *testing.T) {
	p := testProfile()
	p.MaxRetransmits, p.TxnTimeout = 1, 0
	s := newSingle(t, p)
	s.pull(1)
	got := s.advance(2*ms + 100*us)
	if n := len(only(got, wire.TypeResync)); n != 1 {
		t.Fatalf("sent %v, want a Resync at the end", got)
	}
	s.want(s.pullData(200, 1, 64), wire.DropNone)
	if ev := s.ulp.Events; len(ev) != 1 || ev[0].Code != falcon.CmplAck {
		t.Errorf("events %+v", ev)
	}
	if got := s.advance(100 * ms); len(only(got, wire.TypeResync)) != 0 || s.c.Closed() {
		t.Errorf("sent %v, closed %v", got, s.c.Closed())
	}
}

// TestRefusedPullIsCertain: a pull that the target refuses with NACK 8 completes so even if the
// NACK is lost or there was no room to queue it. Its request is acknowledged, so it is not sent
// again.
func TestRefusedPullIsCertain(t *testing.T) {
	for _, lost := range []bool{false, true} {
		p := newPair(t)
		p.ulp[1].OnPull = func(now falcon.Time, ev *falcon.Event, key uint64) {
			if key == 1 {
				ev.Conn.NackPush(now, ev.RSN, wire.NackCID, 0, 0)
				return
			}
			_ = ev.Conn.RespondPull(now, ev.RSN, key, ev.Length)
		}
		if lost {
			p.dropNth(1, wire.TypeNACK, 1)
			p.dropNth(1, wire.TypeResync, 1)
		}
		p.pull(p.a, 100, 1, 2)
		p.run(4 * ms)
		done := p.events(0, falcon.EvPullDone)
		if len(done) != 2 || done[0].Code != falcon.CmplTargetNackCID || done[1].Code != falcon.CmplAck {
			t.Errorf("lost %v: completions %+v", lost, done)
		}
		if n := len(p.events(1, falcon.EvResponseDone)); n != 1 {
			t.Errorf("lost %v: %d responses done at the target, want that of the pull it answered", lost, n)
		}
		p.wantIdle()
	}
}

// TestNackOfAcknowledgedPull: a NACK for a pull whose request is acknowledged is matched by its
// PSN, if it is of a kind that ends a pull (RDMA over Falcon §6.9).
func TestNackOfAcknowledgedPull(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pull(3)
	s.transmit()
	cfg := s.c.Config()
	s.want(s.ack(wire.Ack{ReqBase: cfg.TxReqPSN + 3}), wire.DropNone)
	nack := func(code wire.NackCode, psn uint32, request bool) wire.Drop {
		n := wire.Nack{
			CID: cfg.LocalCID, DataBase: cfg.TxDataPSN, ReqBase: cfg.TxReqPSN + 3, PSN: psn, Code: code, Request: request,
		}
		return s.receive(n.Append(nil))
	}
	psn := cfg.TxReqPSN + 1
	s.want(nack(wire.NackResource, psn, true), wire.DropNackTarget) // it was taken: too late
	s.want(nack(wire.NackRNR, psn, true), wire.DropNackTarget)
	s.want(nack(wire.NackCID, psn, false), wire.DropNackTarget) // of the other window
	s.want(nack(wire.NackCID, psn+5, true), wire.DropNackTarget)
	s.want(nack(wire.NackCode(5), psn, true), wire.DropNackCode)
	s.want(nack(wire.NackCID, psn, true), wire.DropNone)
	s.want(s.pullData(200, 1, 64), wire.DropNone)
	s.want(s.pullData(201, 3, 64), wire.DropNone)
	var codes []falcon.Completion
	for _, e := range s.ulp.Events {
		if e.Kind == falcon.EvPullDone {
			codes = append(codes, e.Code)
		}
	}
	equal(t, "completions", codes, []falcon.Completion{falcon.CmplAck, falcon.CmplTargetNackCID, falcon.CmplAck})
	st := s.e.Stats()
	if st.NacksReceived != 6 || st.NackCodesReceived[wire.NackCID] != 3 || st.NackCodesReceived[0] != 1 {
		t.Errorf("%d NACKs received, by code %v", st.NacksReceived, st.NackCodesReceived)
	}
}

// TestNackQueueIsBounded: a peer that keeps sending refused pushes makes at most a window of NACKs
// wait.
func TestNackQueueIsBounded(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
	s.ulp.OnPush = func(now falcon.Time, ev *falcon.Event, _ uint64) { ev.Conn.NackPush(now, ev.RSN, wire.NackCIE, 0, 1) }
	for range 2 {
		for n := range uint32(wire.DataWindow) {
			s.pushData(200+n, 7+n, false)
		}
	}
	if n := len(only(s.transmit(), wire.TypeNACK)); n != wire.DataWindow || s.e.Stats().NacksSent != wire.DataWindow {
		t.Errorf("%d NACKs, %d counted, want %d", n, s.e.Stats().NacksSent, wire.DataWindow)
	}
}

func TestCase58_ReservedNackCode(t *testing.T) {
	s := newSingle(t, rttProfile(us))
	s.push(2)
	s.transmit()
	s.now += 10 * us
	s.want(s.nack(wire.Nack{PSN: 300, Code: 5}), wire.DropNackCode)
	equal(t, "sent", psns(t, s.transmit()), nil)
}

// TestOnlyTheFirstRefusalOfAPushCounts: the first refusal of a push counts; another one of the same push, late or of
// another kind, changes nothing.
func TestOnlyTheFirstRefusalOfAPushCounts(t *testing.T) {
	s := newSingle(t, testProfile())
	s.push(1)
	s.transmit()
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE, ULPCode: 5}), wire.DropNone)
	first := only(s.transmit(), wire.TypeResync)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackNRE, ULPCode: 6}), wire.DropNone)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31}), wire.DropNone)
	if got := s.transmit(); len(first) != 1 || len(got) != 0 {
		t.Fatalf("%d Resyncs at first, %v later", len(first), got)
	}
	again := only(s.advance(1100*us), wire.TypeResync) // lost, as it is not acknowledged
	if len(again) != 1 {
		t.Fatalf("%d Resyncs after a timeout", len(again))
	}
	if r, _ := wire.ParseResync(again[0].Packet); r.Code != wire.ResyncCIE {
		t.Errorf("Resync %+v", r)
	}
	s.ack(wire.Ack{DataBase: 301})
	if ev := s.ulp.Events; len(ev) != 1 || ev[0].Code != falcon.CmplTargetNackCIE || ev[0].ULPCode != 5 {
		t.Errorf("events %+v", ev)
	}
}

// TestOnlyPushesMayBeNotReady: only a push can be answered with RNR. A pull request and pull data
// are sent again as without it.
func TestOnlyPushesMayBeNotReady(t *testing.T) {
	s := newSingle(t, testProfile())
	s.pullRequest(500, 7, false) // answered with data of PSN 300
	s.pull(1)
	s.transmit()
	s.want(s.nack(wire.Nack{PSN: 100, Code: wire.NackRNR, RNR: 31, Request: true}), wire.DropNone)
	s.want(s.nack(wire.Nack{PSN: 300, Code: wire.NackRNR, RNR: 31}), wire.DropNone)
	if n := s.count(falcon.EvRNR); n != 0 {
		t.Errorf("%d times told of a receiver that is not ready", n)
	}
	seen := map[uint32]bool{}
	for _, psn := range psns(t, s.advance(1100*us)) {
		seen[psn] = true
	}
	if !seen[100] || !seen[300] {
		t.Errorf("sent %v again", seen)
	}
}

// TestResyncIsNotReceived: if the peer has the push that a Resync replaces, this says nothing about
// the Resync, which is sent again after a timeout.
func TestResyncIsNotReceived(t *testing.T) {
	p := rttProfile(20 * us)
	p.AnswerTimeout = 100 * ms
	s := newSingle(t, p)
	s.push(1)
	s.transmit()
	s.nack(wire.Nack{PSN: 300, Code: wire.NackCIE})
	s.transmit()
	s.now += 30 * us
	s.ack(wire.Ack{Extended: true, DataRx: bits(0)})
	if got := only(s.advance(1100*us), wire.TypeResync); len(got) != 1 {
		t.Errorf("%d Resyncs after a timeout", len(got))
	}
}
