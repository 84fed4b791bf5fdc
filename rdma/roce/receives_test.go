package roce_test

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// acksWithCredits acknowledges a packet, with so many messages complete and so many receives.
func (p *peer) acksWithCredits(psn int, messages uint32, receives int) {
	p.sends(wire.Headers{
		BTH:      wire.BTH{Opcode: ib.Acknowledge, PSN: wire.PSN(psn)},
		Extended: ib.Extended{AETH: ib.AETH{Syndrome: ib.SynCredits(receives), MSN: messages}},
	}, 0)
}

// wantSent fails the test unless those packets leave now, by their numbers behind 100, the last of
// which asks for an answer.
func (p *peer) wantSent(what string, want ...int) {
	p.t.Helper()
	list := p.allSent()
	if got := psns(list); !slices.Equal(got, want) {
		p.t.Errorf("%s: sends %v, want %v", what, got, want)
	}
	if n := len(list); n > 0 && !list[n-1].BTH.AckReq {
		p.t.Errorf("%s: waits for credits that it does not ask for", what)
	}
}

// TestARequesterKeepsToCredits: of messages that take a receive as many leave as the peer has
// receives for, and one more, which finds out whether there is another by now (IBA §9.7.7.2).
func TestARequesterKeepsToCredits(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	for range 20 {
		p.posts(abi.OpSend, 8)
	}
	p.wantSent("before the peer said anything", 0)
	p.acksWithCredits(100, 1, 3)
	p.wantSent("with three credits", 1, 2, 3, 4)
	p.acksWithCredits(101, 2, 2)
	p.wantSent("the same three")
	p.acksWithCredits(104, 5, 0)
	p.wantSent("without a credit", 5)
	p.naks(105, ib.SynRNR|1)
	p.now += 1e6
	p.wantSent("the probe again", 5)
	p.acksWithCredits(105, 6, 0)
	p.wantSent("the next probe", 6)
	p.acksWithCredits(106, 7, 5) // 4 can be said
	p.wantSent("with four credits", 7, 8, 9, 10, 11)
	p.acksWithCredits(111, 3, 1) // of long ago
	p.wantSent("all were answered, though the peer counts otherwise", 12)
	p.acks(112)
	p.wantSent("of a peer that does not count", 13, 14, 15, 16, 17, 18, 19)
	p.acksWithCredits(119, 20, 0)
	for range 3 {
		p.posts(abi.OpSend, 8)
	}
	p.wantSent("as it said once", 20, 21, 22)
}

// TestWhatNeedsNoReceiveNeedsNoCredit: WRITEs, READs and atomics are sent without credit, and are
// counted. A WRITE with immediate data takes a credit like a SEND, and a message of several packets
// takes one.
func TestWhatNeedsNoReceiveNeedsNoCredit(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.posts(abi.OpWrite, 8)
	p.posts(abi.OpRead, 3*segment)
	p.posts(abi.OpFetchAdd, 8)
	p.posts(abi.OpSend, 3*segment)
	p.posts(abi.OpWriteImm, 8)
	p.wantSent("up to the probe", 0, 1, 4, 5, 6, 7)
	p.acksWithCredits(100, 1, 0)
	p.wantSent("nothing changed")
	p.answers(ib.ReadRespFirst, 101, ib.SynCredits(1), segment) // of the SEND, which is under way
	p.answers(ib.ReadRespMiddle, 102, 0, segment)               // has no AETH
	p.wantSent("no more than that")
	p.sends(wire.Headers{
		BTH:      wire.BTH{Opcode: ib.ReadRespLast, PSN: 103},
		Extended: ib.Extended{AETH: ib.AETH{Syndrome: ib.SynCredits(2), MSN: 2}},
	}, segment)
	p.wantSent("a response gave another", 8)
	p.posts(abi.OpWriteImm, 2*segment)
	p.posts(abi.OpWrite, 8)
	p.wantSent("a WRITE waits behind one that waits for a receive")
	p.answers(ib.AtomicResponse, 104, ib.SynCredits(0), 0)
	p.acksWithCredits(108, 5, 1)
	p.wantSent("with one credit", 9, 10, 11)
	p.posts(abi.OpSend, 8)
	p.posts(abi.OpSend, 8)
	p.wantSent("the WRITE has moved the limit: a probe", 12)
}

// TestXRCHasNoCredits: the receives of an XRC target are shared, so they are not counted.
func TestXRCHasNoCredits(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}}, func(x *transport.Terms) { x.XRC = true })
	for range 5 {
		p.posts(abi.OpSend, 8)
	}
	p.wantSent("at once", 0, 1, 2, 3, 4)
}

// TestAResponderSaysHowManyReceivesItHas: with each acknowledgement, of every kind, as of the
// messages that it counts (IBA §9.7.7.2). Where receives are shared it says that they do not count.
func TestAResponderSaysHowManyReceivesItHas(t *testing.T) {
	e := &scripted{target: target{serving: true, receives: 7, counted: true}}
	p := newPeer(t, e)
	says := func(what string, n int, aeth ib.AETH) {
		t.Helper()
		list := p.allSent()
		if len(list) != n || list[0].AETH != aeth || list[n-1].AETH != aeth {
			t.Errorf("%s: %+v, want %d packets with %+v", what, list, n, aeth)
		}
	}
	p.asks(ib.SendOnly, 100, 8)
	e.receives = 100 // posted since; the next acknowledgement says it
	says("a SEND", 1, ib.AETH{Syndrome: ib.SynCredits(6), MSN: 1})
	p.asks(ib.ReadRequest, 101, 3*segment)
	p.asks(ib.FetchAdd, 104, 8)
	list := p.allSent()
	for i, want := range []ib.AETH{{Syndrome: ib.SynCredits(96), MSN: 2}, {}, {Syndrome: ib.SynCredits(96), MSN: 2}, {Syndrome: ib.SynCredits(96), MSN: 3}} {
		if list[i].AETH != want {
			t.Errorf("response %d: %+v, want %+v", i, list[i].AETH, want)
		}
	}
	e.receives = 0
	p.asks(ib.WriteOnly, 105, 8)
	says("a WRITE", 1, ib.AETH{Syndrome: ib.SynCredits(0), MSN: 4})
	p.asks(ib.WriteOnly, 105, 8)
	says("again", 1, ib.AETH{Syndrome: ib.SynCredits(0), MSN: 4})
	e.counted = false
	p.asks(ib.WriteOnly, 106, 8)
	says("with shared receives", 1, ib.AETH{Syndrome: ib.SynAck, MSN: 5})
}
