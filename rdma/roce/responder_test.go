package roce_test

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// answered is a short form of an answer: its opcode, its PSN minus 100, and its syndrome.
type answered struct {
	op       ib.Opcode
	psn      int
	syndrome ib.Syndrome
}

func answersOf(list []heard) (all []answered) {
	for i := range list {
		h := &list[i]
		all = append(all, answered{h.BTH.Opcode, h.BTH.PSN.Sub(100), h.AETH.Syndrome})
	}
	return all
}

// wantAnswers fails the test unless the connection sends those answers now, and nothing else.
func (p *peer) wantAnswers(what string, want ...answered) {
	p.t.Helper()
	if got := answersOf(p.allSent()); !slices.Equal(got, want) {
		p.t.Errorf("%s: answers %v, want %v", what, got, want)
	}
}

func ack(psn int) answered { return answered{ib.Acknowledge, psn, ib.SynAck} }

func nak(psn int, syndrome ib.Syndrome) answered {
	return answered{ib.Acknowledge, psn, syndrome}
}

// only returns the response to a READ that has a single packet.
func only(psn int) answered { return answered{ib.ReadRespOnly, psn, ib.SynAck} }

// TestALossBringsOneNAK: the first packet after a missing one is answered with a NAK, the further ones
// are not. When the missing packet has come, the next loss is answered with a NAK again.
func TestALossBringsOneNAK(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.asks(ib.WriteOnly, 101, 8)
	p.wantAnswers("a packet too early", nak(0, ib.SynSequence))
	p.asks(ib.WriteOnly, 102, 8)
	p.asks(ib.WriteOnly, 103, 8)
	p.wantAnswers("further ones")
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("what was missing", ack(0))
	p.asks(ib.WriteOnly, 102, 8)
	p.wantAnswers("another", nak(1, ib.SynSequence))
	if n := p.acct.PushesRx; n != 1 {
		t.Errorf("%d packets taken", n)
	}
}

// TestAPacketThatAsksForNoAnswerGetsNone: a packet that asks for no answer gets none, but the message counts.
func TestAPacketThatAsksForNoAnswerGetsNone(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.sends(wire.Headers{BTH: wire.BTH{Opcode: ib.SendOnly, PSN: 100}}, 8)
	p.wantAnswers("not asked")
	if !slices.Equal(e.lengths, []uint64{8}) {
		t.Errorf("messages of %d bytes", e.lengths)
	}
}

// TestARefusalIsNotReplacedByAnAcknowledgement: an acknowledgement that has not left is replaced by the next one, but a
// NAK is not by one that is about less.
func TestARefusalIsNotReplacedByAnAcknowledgement(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.asks(ib.WriteOnly, 100, 8)
	p.asks(ib.WriteOnly, 101, 8)
	p.wantAnswers("two at once", ack(1))
	p.asks(ib.WriteOnly, 103, 8)
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("a repeated one behind one too early", nak(2, ib.SynSequence))
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("a repeated one when the NAK has left", ack(1))
	p.asks(ib.WriteOnly, 102, 8)
	p.asks(ib.WriteOnly, 104, 8)
	p.asks(ib.WriteOnly, 103, 8)
	p.wantAnswers("one too early, and then what was missing", ack(3))
}

// TestARefusedRequestIsRefusedAgain: a queue pair that refused a request refuses it again, says again what it had taken,
// and repeats the results of atomics; a READ is not carried out any more.
func TestARefusedRequestIsRefusedAgain(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.asks(ib.WriteOnly, 100, 8)
	p.asks(ib.FetchAdd, 101, 8)
	p.asks(ib.ReadRequest, 102, 8)
	p.allSent()
	e.verdict.Refusal = transport.Access
	p.asks(ib.WriteOnly, 103, 8)
	p.wantAnswers("refused", nak(3, ib.SynAccess))
	e.serving, e.verdict.Refusal = false, transport.Accepted
	for _, psn := range []int{103, 104, 110} {
		p.asks(ib.WriteOnly, psn, 8)
		p.wantAnswers("refused again", nak(3, ib.SynAccess))
	}
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("taken", ack(2))
	p.asks(ib.FetchAdd, 101, 8)
	p.wantAnswers("an atomic", answered{ib.AtomicResponse, 1, ib.SynAck})
	p.asks(ib.ReadRequest, 102, 8)
	p.wantAnswers("a READ")
	r := transport.Request{Length: 8}
	if _, err := p.conn.Issue(p.now, &r); err != transport.ErrWindow {
		t.Errorf("takes requests of its own: %v", err)
	}
	if n := p.acct.Refused; n != 1 || p.ports[0].Stats().Refused != 1 {
		t.Errorf("%d refused", n)
	}

	e = &scripted{target: target{serving: true}}
	p = newPeer(t, e)
	p.asks(ib.WriteOnly, 100, 8)
	p.allSent()
	e.serving = false
	for _, psn := range []int{101, 102} {
		p.asks(ib.WriteOnly, psn, 8)
		p.wantAnswers("as if nobody were there")
	}
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("taken", ack(0))
}

// TestAnEndpointThatDoesNotServeDoesNotAnswer: an endpoint that turns out not to serve leaves the peer without a
// word.
func TestAnEndpointThatDoesNotServeDoesNotAnswer(t *testing.T) {
	e := &scripted{target: target{serving: true}, verdict: transport.Verdict{Refusal: transport.NotServing}}
	p := newPeer(t, e)
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("not serving")
}

// TestAnswersCountEachMessageOnce: answers say how many messages are complete: of any length, of any kind, each
// once.
func TestAnswersCountEachMessageOnce(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	for i, c := range []struct {
		op  ib.Opcode
		n   int
		msn uint32
	}{
		{ib.SendOnly, 8, 1},
		{ib.SendFirst, segment, 1},
		{ib.SendMiddle, segment, 1},
		{ib.SendLast, 8, 2},
		{ib.ReadRequest, 8, 3},
		{ib.FetchAdd, 8, 4},
		{ib.SendOnlyImm, 0, 5},
	} {
		p.asks(c.op, 100+i, c.n)
		if list := p.allSent(); len(list) != 1 || list[0].AETH.MSN != c.msn {
			t.Errorf("packet %d: %+v, want %d messages", i, list, c.msn)
		}
	}
	p.asks(ib.ReadRequest, 104, 8)
	p.asks(ib.FetchAdd, 105, 8)
	for i, h := range p.allSent() {
		if want := []uint32{5, 4}[i]; h.AETH.MSN != want { // one is carried out again, the other is not
			t.Errorf("asked again, %d: %d messages, want %d", i, h.AETH.MSN, want)
		}
	}
}

// TestAnAcknowledgementWaitsForTheReadBeforeIt: the acknowledgement of requests after a READ waits for the READ's response,
// which acknowledges the requests before it.
func TestAnAcknowledgementWaitsForTheReadBeforeIt(t *testing.T) {
	e := &scripted{target: target{serving: true}, rate: func(now transport.Time) transport.Time { return now + 5000 }}
	p := newPeer(t, e)
	p.asks(ib.WriteOnly, 100, 8)
	p.asks(ib.ReadRequest, 101, 8)
	p.wantAnswers("what is before", ack(0))
	p.asks(ib.WriteOnly, 100, 8) // again: acknowledged as of now, which includes the READ
	p.wantAnswers("the READ itself")
	p.asks(ib.WriteOnly, 102, 8)
	p.wantAnswers("what is behind")
	p.now += 5000
	p.wantAnswers("in time", only(1), ack(2))
}

// TestAReadIsAnsweredWhenTheRateAllows: a READ is answered when the function's rate lets it, and counted if that is
// later.
func TestAReadIsAnsweredWhenTheRateAllows(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.asks(ib.ReadRequest, 100, 8)
	p.wantAnswers("without a rate", only(0))
	e.rate = func(now transport.Time) transport.Time { return now - 1 }
	p.asks(ib.ReadRequest, 101, 8)
	p.wantAnswers("whose time has come", only(1))
	if c := p.acct.Counters; c.RateWaits != 0 || c.PullsDeferred != 0 {
		t.Errorf("%+v", c)
	}
	e.rate = func(now transport.Time) transport.Time { return now + 7777 }
	p.asks(ib.ReadRequest, 102, 8)
	p.wantAnswers("at once")
	p.now += 7776
	p.wantAnswers("too early")
	if at := p.engines[0].Deadline(); at != p.now+1 {
		t.Errorf("looks at %d, want %d", at, p.now+1)
	}
	p.now++
	p.wantAnswers("in time", only(2))
	if c := p.acct.Counters; c.RateWaits != 1 || c.PullsDeferred != 1 || c.PullsRx != 3 {
		t.Errorf("%+v", c)
	}
}

// TestNothingElseComesWithinAMessage: within a message nothing else comes, neither a READ nor an atomic.
func TestNothingElseComesWithinAMessage(t *testing.T) {
	for _, op := range []ib.Opcode{ib.ReadRequest, ib.FetchAdd, ib.SendOnly, ib.WriteMiddle} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		p.asks(ib.SendFirst, 100, segment)
		p.asks(op, 101, segment)
		p.wantAnswers(op.Info().Name, nak(1, ib.SynInvalid))
		if !slices.Equal(e.refused, []transport.Refusal{transport.Invalid}) || len(e.packets) != 1 {
			t.Errorf("%v: refused %v, %d packets placed", op, e.refused, len(e.packets))
		}
	}
}

// TestARefusalReachesPeerAndQueuePair: a refused request is reported to the peer and to the queue pair.
func TestARefusalReachesPeerAndQueuePair(t *testing.T) {
	for why, want := range map[transport.Refusal]ib.Syndrome{
		transport.Access: ib.SynAccess, transport.Operation: ib.SynOperation, transport.Invalid: ib.SynInvalid,
	} {
		for _, op := range []ib.Opcode{ib.ReadRequest, ib.FetchAdd} {
			e := &scripted{target: target{serving: true}, refusal: why}
			p := newPeer(t, e)
			p.asks(op, 100, 8)
			p.wantAnswers(op.Info().Name, nak(0, want))
			if s := p.ports[0].Stats(); !slices.Equal(e.refused, []transport.Refusal{why}) || s.Refused != 1 || p.acct.Refused != 1 || p.acct.PullsRx != 0 {
				t.Errorf("%v: refused %v, %+v, %+v", op, e.refused, s, p.acct.Counters)
			}
		}
	}
}

// TestAReadWhoseMemoryGoesIsRefusedFromThereOn: a READ whose memory goes away while it is answered is refused from there on.
func TestAReadWhoseMemoryGoesIsRefusedFromThereOn(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.asks(ib.ReadRequest, 100, 600)
	p.asks(ib.ReadRequest, 103, 8)
	if h, _ := p.next(); h.BTH.Opcode != ib.ReadRespFirst {
		t.Fatalf("%s", wire.Opcodes.Name(h.BTH.Opcode))
	}
	e.gone = true
	p.wantAnswers("before it is known")
	p.wantAnswers("refused", nak(1, ib.SynOperation))
	if s := p.ports[0].Stats(); !slices.Equal(e.refused, []transport.Refusal{transport.Operation}) || s.Refused != 1 || p.acct.Refused != 1 {
		t.Errorf("refused %v, %+v, %+v", e.refused, s, p.acct.Counters)
	}
}

// TestZeroBytesOfMemory: a READ of nothing looks at no memory.
func TestZeroBytesOfMemory(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}, gone: true})
	p.asks(ib.ReadRequest, 100, 0)
	p.wantAnswers("nothing", only(0))
}

// TestAnAtomicThatWasNotCarriedOutIsNotAnswered: an atomic that was never carried out is not answered, though its PSN, 0, is
// also that of an empty place for a result.
func TestAnAtomicThatWasNotCarriedOutIsNotAnswered(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}}, func(x *transport.Terms) { x.PSN = 2 })
	p.asks(ib.FetchAdd, 2, 8)
	p.allSent()
	p.asks(ib.FetchAdd, 0, 8)
	p.wantAnswers("never carried out")
	p.asks(ib.FetchAdd, 2, 8)
	p.wantAnswers("again", answered{ib.AtomicResponse, 2 - 100, ib.SynAck})
}

// TestTheResponderCountsEachPacketOnce: the account has each packet and byte once.
func TestTheResponderCountsEachPacketOnce(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.asks(ib.SendFirst, 100, segment)
	p.asks(ib.SendLast, 101, 44)
	p.asks(ib.ReadRequest, 102, 600)
	p.asks(ib.FetchAdd, 105, 8)
	e.verdict.Refusal = transport.NotReady
	for range 2 {
		p.asks(ib.SendOnly, 106, 8)
	}
	want := transport.Counters{PushesRx: 2, BytesRx: 300, PullsRx: 4, RNRTx: 2}
	if p.acct.Counters != want {
		t.Errorf("%+v, want %+v", p.acct.Counters, want)
	}
	if !slices.Equal(e.lengths, []uint64{300}) || e.packets[1].Offset != segment || e.packets[0].Message != 1 {
		t.Errorf("messages %d, packets %+v", e.lengths, e.packets)
	}
	list := p.allSent()
	if last := list[len(list)-1]; last.AETH.Syndrome != ib.SynRNR|1 { // the target's timer
		t.Errorf("syndrome %#x", last.AETH.Syndrome)
	}
}

// TestOnlyMarkedPacketsBringNotifications: marks bring a notification of congestion (CA17-44), one in 50 µs; packets
// without a mark bring none.
func TestOnlyMarkedPacketsBringNotifications(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.now = 10e3 // a NIC may be as young as that
	psn := 100
	packet := func(ecn uint8, after transport.Time) (cnps int) {
		p.way.Class = 0x20 | ecn
		p.now += after
		p.pkey = []uint16{0xffff, 0x7fff}[psn&1] // of a full and of a limited member
		p.asks(ib.WriteOnly, psn, 8)
		psn++
		for _, h := range p.allSent() {
			if h.BTH.Opcode == wire.CNP {
				cnps++
				want := wire.BTH{Opcode: wire.CNP, BECN: true, DestQP: 18, PKey: p.pkey} // the marked packet's (figure 6)
				if h.BTH != want {
					t.Errorf("%+v, want %+v", h.BTH, want)
				}
			}
		}
		return cnps
	}
	for i, c := range []struct {
		ecn   uint8
		after transport.Time
		want  int
	}{
		{0, 0, 0},
		{wire.ECT0, 0, 0},
		{1, 0, 0},
		{wire.ECNCE, 0, 1},
		{wire.ECNCE, 1, 0},
		{wire.ECNCE, 49_998, 0},
		{wire.ECNCE, 1, 1},
		{wire.ECT0, 50_000, 0},
		{wire.ECNCE, 0, 1},
	} {
		if got := packet(c.ecn, c.after); got != c.want {
			t.Errorf("packet %d: %d notifications, want %d", i, got, c.want)
		}
	}
	if s := p.ports[0].Stats(); s.Marked != 5 || s.CNPsSent != 3 || s.CNPs != 0 {
		t.Errorf("%+v", s)
	}
	p.sends(wire.Headers{BTH: wire.BTH{Opcode: wire.CNP}}, wire.CNPReserved)
	if s := p.ports[0].Stats(); s.CNPs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestAnswersAndRequestsTakeTurns: a connection that has answers and requests to send does so in turns.
func TestAnswersAndRequestsTakeTurns(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.asks(ib.ReadRequest, 100, 10*segment)
	p.posts(abi.OpWrite, 10*segment)
	list := p.allSent()
	if len(list) != 20 {
		t.Fatalf("%d packets", len(list))
	}
	for i := range list {
		if i > 0 && (list[i].BTH.Opcode.Info().Kind == ib.KindResponse) == (list[i-1].BTH.Opcode.Info().Kind == ib.KindResponse) {
			t.Errorf("packets %d and %d are of one kind", i-1, i)
		}
	}
}

// TestPartingConnectionRepeatsAnswers: a connection that its queue pair left answers for a second
// what it had taken.
func TestPartingConnectionRepeatsAnswers(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.asks(ib.WriteOnly, 100, 8)
	p.allSent()
	p.conn.Drain(p.now)
	p.now += 1e9 - 1
	p.asks(ib.WriteOnly, 101, 8)
	p.wantAnswers("what is new")
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("what it had taken", ack(0))
	p.now++
	p.allSent()
	p.asks(ib.WriteOnly, 100, 8)
	p.wantAnswers("a second later")
	if s := p.ports[0].Stats(); s.Strange != 1 || len(p.ports[0].Conns()) != 0 {
		t.Errorf("%+v, %+v", s, p.ports[0].Conns())
	}
}

// TestASilentPeerGetsItsAnswersOnce: a peer that says nothing more gets the answers to the READs it asked for, once.
// If the queue pair goes, it gets no more of them.
func TestASilentPeerGetsItsAnswersOnce(t *testing.T) {
	for _, stays := range []bool{true, false} {
		p := newPeer(t, &scripted{target: target{serving: true}})
		const packets = 10
		for i := range 16 {
			p.asks(ib.ReadRequest, 100+packets*i, packets*segment)
		}
		sent, want := 0, 16*packets
		for range packets {
			if _, ok := p.next(); ok {
				sent++
			}
		}
		if !stays {
			want = packets
			p.conn.Drain(p.now)
		}
		for range 100 {
			sent += len(p.allSent())
			p.now += 1e9
		}
		if sent != want || p.engines[0].Waiting() {
			t.Errorf("queue pair stays %t: %d packets, want %d", stays, sent, want)
		}
	}
}

// TestSharedReceiveQueue: a request of an extended reliable connection that names a shared receive
// queue that is not to be reached is refused; one that came before is not answered.
func TestSharedReceiveQueue(t *testing.T) {
	e := &reachable{scripted: scripted{target: target{serving: true}}, srq: 5}
	p := newPeer(t, e, func(x *transport.Terms) { x.XRC = true })
	send := func(psn int, srq uint32) {
		p.sends(wire.Headers{BTH: wire.BTH{Opcode: ib.XRC | ib.SendOnly, PSN: wire.PSN(psn), AckReq: true}, Extended: ib.Extended{XRC: ib.XRCETH{SRQ: srq}}}, 8)
	}
	xrc := func(a answered) answered {
		a.op |= ib.XRC
		return a
	}
	send(100, 5)
	p.wantAnswers("reached", xrc(ack(0)))
	send(100, 6)
	p.wantAnswers("again, at another")
	send(101, 6)
	p.wantAnswers("at another", xrc(nak(1, ib.SynInvalid)))
	if len(e.packets) != 1 || !slices.Equal(e.refused, []transport.Refusal{transport.Invalid}) {
		t.Errorf("%d packets placed, refused %v", len(e.packets), e.refused)
	}
}

// reachable is an endpoint of an extended reliable connection, with one shared receive queue.
type reachable struct {
	scripted
	srq uint32
}

func (e *reachable) Address(srq uint32) bool { return srq == e.srq }

// TestEachKindOfAtomicReachesTheEndpoint: each kind of atomic comes to the endpoint as what it is, over both services.
func TestEachKindOfAtomicReachesTheEndpoint(t *testing.T) {
	for _, xrc := range []bool{false, true} {
		e := &adder{reachable: reachable{scripted: scripted{target: target{serving: true}}}}
		p := newPeer(t, e, func(x *transport.Terms) { x.XRC = xrc })
		ops := []ib.Opcode{ib.CmpSwap, ib.FetchAdd, ib.MaskedCmpSwap, ib.MaskedFetchAdd}
		for i, op := range ops {
			service := ib.RC
			if xrc {
				service = ib.XRC
			}
			p.sends(wire.Headers{
				BTH: wire.BTH{Opcode: wire.Opcode(service, op), PSN: wire.PSN(100 + i), AckReq: true},
				Extended: ib.Extended{
					Atomic: ib.AtomicETH{VA: 8, RKey: 7, SwapAdd: 1, Compare: 2},
					Mask:   ib.AtomicMaskETH{SwapAdd: 3, Compare: 4},
				},
			}, 0)
		}
		want := []abi.Opcode{abi.OpCmpSwap, abi.OpFetchAdd, abi.OpMaskedCmpSwap, abi.OpMaskedFetchAdd}
		if len(e.atomics) != len(want) {
			t.Fatalf("%d atomics", len(e.atomics))
		}
		for i, x := range e.atomics {
			masks := abi.AtomicMasks{}
			if i >= 2 {
				masks = abi.AtomicMasks{SwapAdd: 3, Compare: 4}
			}
			if x != (transport.Atomic{Op: want[i], Addr: 8, RKey: 7, SwapAdd: 1, Compare: 2, Masks: masks}) {
				t.Errorf("XRC %t, %v: %+v", xrc, ops[i], x)
			}
		}
	}
}

// adder notes atomics.
type adder struct {
	reachable
	atomics []transport.Atomic
}

func (e *adder) Atomic(x *transport.Atomic) (uint64, transport.Refusal) {
	e.atomics = append(e.atomics, *x)
	return 1, transport.Accepted
}

// immediates keeps what SENDs bring.
type immediates struct {
	target
	imm []uint32
}

func (e *immediates) Complete(_ transport.Time, p *transport.Packet, _ uint64, _ abi.WCStatus) {
	e.imm = append(e.imm, p.Imm)
}

// TestImmediateDataArrivesUnchanged: the four bytes of immediate data are on the wire as they are in the work request,
// and come to the peer so. The key of a SEND with invalidate is a number.
func TestImmediateDataArrivesUnchanged(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1000})
	a, b := w.connect(0), w.connect(1)
	to := &immediates{target: target{serving: true}}
	attach(t, a, &target{serving: true}, 17, 18)
	attach(t, b, to, 18, 17)
	var request abi.SendWQE
	var wqe [64]byte
	request.Marshal(wqe[:])
	copy(wqe[12:], []byte{1, 2, 3, 4})
	request.Unmarshal(wqe[:])
	var seen [][4]byte
	w.sees = func(from int, packet []byte) {
		if from == 0 {
			seen = append(seen, [4]byte(packet[20+8+wire.BTHLen:]))
		}
	}
	now := transport.Time(1e9)
	for _, op := range []abi.Opcode{abi.OpSendImm, abi.OpSendInv} {
		r := transport.Request{WQE: abi.SendWQE{Opcode: op, Imm: request.Imm}}
		if _, err := a.Issue(now, &r); err != nil {
			t.Fatal(err)
		}
		for r.Pending > 0 {
			now = max(now, w.step(now))
		}
	}
	if len(seen) != 2 || seen[0] != [4]byte{1, 2, 3, 4} || seen[1] != [4]byte{4, 3, 2, 1} {
		t.Errorf("on the wire: %v", seen)
	}
	if len(to.imm) != 2 || to.imm[0] != request.Imm || to.imm[1] != request.Imm {
		t.Errorf("the peer got %#x of %#x", to.imm, request.Imm)
	}
}
