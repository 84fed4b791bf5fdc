package roce_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// syndromes are one of each kind.
var syndromes = []ib.Syndrome{ib.SynAck, ib.SynRNR | 1, ib.SynSequence, ib.SynInvalid, ib.SynAccess, ib.SynOperation}

// TestAnswersToNothingChangeNothing: answers to packets that were not sent yet, or that were answered before,
// change nothing.
func TestAnswersToNothingChangeNothing(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.acks(100) // nothing was ever sent
	for range 3 {
		p.posts(abi.OpWrite, 10)
	}
	p.acks(100) // nothing was sent yet
	p.next()
	for _, syndrome := range syndromes {
		for _, psn := range []int{1, 2, 3, 1 << 22, 1<<23 - 1, -2, -1 << 22, -1<<23 + 1, -1 << 23} {
			p.naks(100+psn, syndrome)
		}
		if syndrome != ib.SynAck {
			p.naks(99, syndrome)
		}
	}
	p.acks(99)
	if pushes, _ := p.conn.UnderWay(); pushes != 3 || len(e.statuses) != 0 {
		t.Errorf("%d of 3 under way, ended %v", pushes, e.statuses)
	}
	if at := psns(p.allSent()); !slices.Equal(at, []int{1, 2}) {
		t.Errorf("sends %v, want what was not sent", at)
	}
	if s := p.ports[0].Stats(); s.Missing+s.Again != 0 || p.acct.RNRRx != 0 {
		t.Errorf("%+v, %+v", s, p.acct.Counters)
	}
	p.acks(101)
	if want := []abi.WCStatus{0, 0}; !slices.Equal(e.statuses, want) {
		t.Errorf("ended %v, want two", e.statuses)
	}
}

// TestOldAnswersAreNoProgress: repeated acknowledgements of the same packet are no progress, and do
// not prevent a timeout.
func TestOldAnswersAreNoProgress(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e, func(x *transport.Terms) { x.Sending.Timeout, x.Sending.RetryCount = 10, 1 }) // 17 ms, twice
	p.posts(abi.OpWrite, 1)
	p.posts(abi.OpWrite, 1)
	p.allSent()
	p.acks(100)
	for range 33 {
		p.now += 1e6
		p.allSent()
		p.acks(100)
	}
	if len(e.statuses) != 1 {
		t.Fatalf("ended %v after 33 ms", e.statuses)
	}
	p.now += 1e6
	p.allSent()
	if want := []abi.WCStatus{0, abi.WCRetryExcErr}; !slices.Equal(e.statuses, want) {
		t.Errorf("ended %v, want %v", e.statuses, want)
	}
}

// TestAnAnswerOfAnotherKindEndsNoRequest: a response that is not the one to its request does not end it, nor does
// one that was repeated.
func TestAnAnswerOfAnotherKindEndsNoRequest(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.posts(abi.OpWrite, 10)
	p.posts(abi.OpRead, 10)
	p.posts(abi.OpFetchAdd, 8)
	p.posts(abi.OpFetchAdd, 8)
	p.allSent()
	p.answers(ib.ReadRespOnly, 100, ib.SynAck, 10)
	p.answers(ib.AtomicResponse, 100, ib.SynAck, 0)
	if len(e.statuses) != 0 {
		t.Fatalf("a WRITE ended by a response: %v", e.statuses)
	}
	p.answers(ib.AtomicResponse, 101, ib.SynAck, 0)
	if len(e.statuses) != 1 { // which says that the WRITE arrived
		t.Fatalf("a READ ended by the response to an atomic: %v", e.statuses)
	}
	p.answers(ib.ReadRespOnly, 101, ib.SynAck, 10)
	p.answers(ib.ReadRespOnly, 102, ib.SynAck, 8)
	if len(e.statuses) != 2 {
		t.Fatalf("an atomic ended by the response to a READ: %v", e.statuses)
	}
	for range 2 {
		p.answers(ib.AtomicResponse, 102, ib.SynAck, 0)
	}
	if len(e.statuses) != 3 {
		t.Fatalf("an atomic ended by the response to another: %v", e.statuses)
	}
	p.answers(ib.AtomicResponse, 103, ib.SynAck, 0)
	if want := make([]abi.WCStatus, 4); !slices.Equal(e.statuses, want) {
		t.Errorf("ended %v, want %v", e.statuses, want)
	}
}

// TestAResponseAcknowledgesWhatCameBeforeIt: the response to a READ or atomic acknowledges everything before it. If
// it shows that an earlier response was lost, that one is requested again.
func TestAResponseAcknowledgesWhatCameBeforeIt(t *testing.T) {
	for _, op := range []abi.Opcode{abi.OpRead, abi.OpFetchAdd} {
		response := map[abi.Opcode]ib.Opcode{abi.OpRead: ib.ReadRespOnly, abi.OpFetchAdd: ib.AtomicResponse}[op]
		n := map[abi.Opcode]int{abi.OpRead: 8}[op]
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		p.posts(abi.OpWrite, 10)
		p.posts(abi.OpSend, 300)
		p.posts(op, 8)
		p.posts(op, 8)
		p.posts(abi.OpWrite, 10)
		p.allSent()
		p.answers(response, 103, ib.SynAck, n)
		if len(e.statuses) != 4 {
			t.Errorf("%v: %d packets ended, want 4", op, len(e.statuses))
		}
		p.acks(105)
		if s := p.ports[0].Stats(); len(e.statuses) != 4 || s.Missing != 1 {
			t.Errorf("%v: %d packets ended without a response, %d found missing", op, len(e.statuses), s.Missing)
		}
		if at := psns(p.allSent()); !slices.Equal(at, []int{4, 5}) {
			t.Errorf("%v: sends %v again", op, at)
		}
		p.answers(response, 104, ib.SynAck, n)
		p.acks(105)
		if want := make([]abi.WCStatus, 6); !slices.Equal(e.statuses, want) {
			t.Errorf("%v: ended %v", op, e.statuses)
		}
	}
}

// TestAMalformedReadResponseFailsTheRead: which packets are the response to a READ of two.
func TestAMalformedReadResponseFailsTheRead(t *testing.T) {
	type packet struct {
		op ib.Opcode
		n  int
	}
	for _, c := range []struct {
		name    string
		packets []packet
		want    []abi.WCStatus
	}{
		{"right", []packet{{ib.ReadRespFirst, 256}, {ib.ReadRespLast, 44}}, []abi.WCStatus{0, 0}},
		{"a short first", []packet{{ib.ReadRespFirst, 255}}, []abi.WCStatus{abi.WCBadRespErr}},
		{"a long first", []packet{{ib.ReadRespFirst, 257}}, []abi.WCStatus{abi.WCBadRespErr}},
		{"the first is an only", []packet{{ib.ReadRespOnly, 256}}, []abi.WCStatus{abi.WCBadRespErr}},
		{"a short last", []packet{{ib.ReadRespFirst, 256}, {ib.ReadRespLast, 43}}, []abi.WCStatus{0, abi.WCBadRespErr}},
		{"a long last", []packet{{ib.ReadRespFirst, 256}, {ib.ReadRespLast, 45}}, []abi.WCStatus{0, abi.WCBadRespErr}},
		{"the last is a middle", []packet{{ib.ReadRespFirst, 256}, {ib.ReadRespMiddle, 44}}, []abi.WCStatus{0, abi.WCBadRespErr}},
	} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		p.posts(abi.OpRead, 300)
		p.allSent()
		for i, x := range c.packets {
			p.answers(x.op, 100+i, ib.SynAck, x.n)
		}
		if !slices.Equal(e.statuses, c.want) {
			t.Errorf("%s: ended %v, want %v", c.name, e.statuses, c.want)
		}
	}
}

// TestAResponseThatCannotBePlacedFailsItsRequest: a response that cannot be placed fails its request; one without data has
// nothing to place.
func TestAResponseThatCannotBePlacedFailsItsRequest(t *testing.T) {
	for _, c := range []struct {
		op       abi.Opcode
		n        int
		response ib.Opcode
		want     abi.WCStatus
	}{
		{abi.OpRead, 8, ib.ReadRespOnly, abi.WCLocProtErr},
		{abi.OpRead, 0, ib.ReadRespOnly, abi.WCSuccess},
		{abi.OpFetchAdd, 8, ib.AtomicResponse, abi.WCLocProtErr},
	} {
		e := &scripted{target: target{serving: true}, gone: true}
		p := newPeer(t, e)
		p.posts(c.op, c.n)
		p.allSent()
		n := c.n
		if c.op == abi.OpFetchAdd {
			n = 0
		}
		p.answers(c.response, 100, ib.SynAck, n)
		if !slices.Equal(e.statuses, []abi.WCStatus{c.want}) {
			t.Errorf("%v of %d bytes: %v, want %v", c.op, c.n, e.statuses, c.want)
		}
	}
}

// TestAReadMayBeRefusedInTheMiddle: a peer that has answered a part of a READ may refuse the rest. Its NAK
// names the first packet that is not answered, or the request, as Linux does.
func TestAReadMayBeRefusedInTheMiddle(t *testing.T) {
	for syndrome, want := range map[ib.Syndrome]abi.WCStatus{ib.SynOperation: abi.WCRemOpErr, ib.SynAccess: abi.WCRemAccessErr} {
		for _, psn := range []int{100, 101} {
			e := &scripted{target: target{serving: true}}
			p := newPeer(t, e)
			p.posts(abi.OpRead, 600)
			p.allSent()
			p.answers(ib.ReadRespFirst, 100, ib.SynAck, 256)
			p.naks(102, syndrome) // behind one that is missing
			if !slices.Equal(e.statuses, []abi.WCStatus{0}) {
				t.Errorf("%#x: ended %v", syndrome, e.statuses)
			}
			p.naks(psn, syndrome)
			if !slices.Equal(e.statuses, []abi.WCStatus{0, want}) || e.vendors[1] != uint32(syndrome) {
				t.Errorf("%#x of %d: ended %v with %#x, want %v", syndrome, psn, e.statuses, e.vendors, want)
			}
		}
	}
}

// TestAQueuePairMayForgetItsRequestsInDone: a queue pair may drop its requests in a call of Done. It gets no more calls for
// them, and the connection takes new ones.
func TestAQueuePairMayForgetItsRequestsInDone(t *testing.T) {
	type requests []abi.Opcode
	for _, c := range []struct {
		name   string
		posted requests
		answer func(*peer)
	}{
		{"an acknowledgement", requests{abi.OpWrite, abi.OpWrite}, func(p *peer) { p.acks(101) }},
		{"a NAK", requests{abi.OpWrite, abi.OpWrite, abi.OpWrite}, func(p *peer) { p.naks(101, ib.SynSequence) }},
		{"a response behind others", requests{abi.OpWrite, abi.OpWrite, abi.OpRead}, func(p *peer) { p.answers(ib.ReadRespFirst, 102, ib.SynAck, 256) }},
		{"a part of a response", requests{abi.OpRead, abi.OpWrite}, func(p *peer) { p.answers(ib.ReadRespFirst, 100, ib.SynAck, 256) }},
		{"the response to an atomic", requests{abi.OpFetchAdd, abi.OpWrite}, func(p *peer) { p.answers(ib.AtomicResponse, 100, ib.SynAck, 0) }},
	} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		e.onDone = func() { p.conn.Forget() }
		next := 0
		for _, op := range c.posted {
			n := map[abi.Opcode]int{abi.OpRead: 600, abi.OpFetchAdd: 8}[op]
			p.posts(op, n)
			next += max(1, (n+segment-1)/segment)
		}
		p.allSent()
		c.answer(p)
		if pushes, pulls := p.conn.UnderWay(); pushes+pulls != 0 || len(e.statuses) != 1 {
			t.Errorf("%s: %d and %d under way, %d ended", c.name, pushes, pulls, len(e.statuses))
		}
		for range 100 {
			p.now += 100e6
			if list := p.allSent(); len(list) != 0 {
				t.Fatalf("%s: sends %v of what is forgotten", c.name, psns(list))
			}
		}
		e.onDone = nil
		p.posts(abi.OpWrite, 10)
		if at := psns(p.allSent()); !slices.Equal(at, []int{next}) {
			t.Errorf("%s: sends %v, want %d", c.name, at, next)
		}
		if p.acks(100 + next); len(e.statuses) != 2 {
			t.Errorf("%s: the next request did not end", c.name)
		}
	}
}

// TestAPeerThatIsNotReadyIsTriedAgainWhenItSays: after a not-ready answer one request is sent again after the time that the peer
// names, not before. Those behind it follow when it has been accepted.
func TestAPeerThatIsNotReadyIsTriedAgainWhenItSays(t *testing.T) {
	for _, timer := range []uint8{1, 12, 31, 0} {
		e := &scripted{target: target{serving: true}}
		p := newPeer(t, e)
		p.posts(abi.OpSend, 10)
		p.posts(abi.OpWrite, 10) // which needs no credit of the peer
		p.allSent()
		for times := range 3 {
			p.naks(100, ib.SynRNR|ib.Syndrome(timer))
			p.now += falconwire.RNRTimeout(timer) - 1
			if list := p.allSent(); len(list) != 0 {
				t.Fatalf("timer %d: asked too early", timer)
			}
			p.now++
			if at := psns(p.allSent()); !slices.Equal(at, []int{0}) {
				t.Fatalf("timer %d: sends %v in time", timer, at)
			}
			if p.acct.RNRRx != uint64(times+1) || len(e.notReady) != times+1 || e.notReady[times] != times+1 {
				t.Fatalf("timer %d: told %v times, counted %d", timer, e.notReady, p.acct.RNRRx)
			}
		}
		p.acks(100)
		if at := psns(p.allSent()); !slices.Equal(at, []int{1}) {
			t.Errorf("timer %d: sends %v when the first was taken", timer, at)
		}
	}
}

// TestALateAnswerDoesNotEndTheWaitForAPeer: what is answered while the peer is not ready does not end the wait.
func TestALateAnswerDoesNotEndTheWaitForAPeer(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.posts(abi.OpSend, 10)
	p.posts(abi.OpSend, 10)
	p.allSent()
	p.naks(100, ib.SynRNR|12)
	p.acks(100) // of the first attempt, late
	p.now += falconwire.RNRTimeout(12) - 1
	if at := psns(p.allSent()); len(at) != 0 {
		t.Errorf("sends %v too early", at)
	}
	p.now++
	if at := psns(p.allSent()); !slices.Equal(at, []int{1}) {
		t.Errorf("sends %v", at)
	}
}

// TestAQueuePairThatGivesUpGoesOnAtOnce: a queue pair that gives up where the peer is not ready goes on at once.
func TestAQueuePairThatGivesUpGoesOnAtOnce(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	e.onRNR = func() { p.conn.Forget() }
	p.posts(abi.OpSend, 10)
	p.allSent()
	p.naks(100, ib.SynRNR|31)
	p.posts(abi.OpSend, 10)
	if at := psns(p.allSent()); !slices.Equal(at, []int{1}) {
		t.Errorf("sends %v", at)
	}
	p.now += 260e6
	if at := psns(p.allSent()); !slices.Equal(at, []int{1}) {
		t.Errorf("sends %v again", at)
	}
}

// TestANAKHasEverythingFromItsPSNOnSentAgain: each NAK causes everything from its PSN on to be sent again. Of responses out
// of order only the first does, until one arrives in order.
func TestANAKHasEverythingFromItsPSNOnSentAgain(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	for range 3 {
		p.posts(abi.OpWrite, 10)
	}
	p.allSent()
	for i := range 2 {
		p.naks(101, ib.SynSequence)
		if at := psns(p.allSent()); !slices.Equal(at, []int{1, 2}) || len(e.statuses) != 1 {
			t.Errorf("NAK %d: sends %v, %d ended", i, at, len(e.statuses))
		}
	}
	p.acks(102)
	p.posts(abi.OpRead, 1000) // 103 to 106
	p.allSent()
	p.answers(ib.ReadRespMiddle, 105, ib.SynAck, 256)
	p.answers(ib.ReadRespLast, 106, ib.SynAck, 232)
	if at := psns(p.allSent()); !slices.Equal(at, []int{3}) {
		t.Errorf("sends %v", at)
	}
	p.answers(ib.ReadRespMiddle, 105, ib.SynAck, 256)
	if at := psns(p.allSent()); len(at) != 0 {
		t.Errorf("sends %v twice for one loss", at)
	}
	p.answers(ib.ReadRespFirst, 103, ib.SynAck, 256)
	p.answers(ib.ReadRespMiddle, 105, ib.SynAck, 256)
	again := p.allSent()
	if at := psns(again); !slices.Equal(at, []int{4}) || again[0].RETH.Length != 1000-256 || again[0].RETH.VA != 256 {
		t.Errorf("sends %v of %d bytes at %d, want the rest", at, again[0].RETH.Length, again[0].RETH.VA)
	}
	if s := p.ports[0].Stats(); s.Missing != 4 || s.Again != 6 || s.Timeouts != 0 || s.Sent != 10 {
		t.Errorf("%+v", s)
	}
	if i := p.ports[0].Conns()[0]; i.Again != 6 {
		t.Errorf("%d sent again by the connection", i.Again)
	}
}

// TestNothingIsSentAfterAFailureOrADetach: nothing is sent after a request has failed, or after the queue pair has
// detached.
func TestNothingIsSentAfterAFailureOrADetach(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e)
	p.posts(abi.OpWrite, 10)
	p.posts(abi.OpWrite, 10)
	p.allSent()
	p.naks(100, ib.SynAccess)
	p.posts(abi.OpWrite, 10)
	if at := psns(p.allSent()); len(at) != 0 || !slices.Equal(e.statuses, []abi.WCStatus{abi.WCRemAccessErr}) {
		t.Errorf("sends %v, ended %v", at, e.statuses)
	}
	p = newPeer(t, e)
	p.conn.Drain(p.now)
	r := transport.Request{Length: 8, WQE: abi.SendWQE{Opcode: abi.OpWrite}}
	_, _ = p.conn.Issue(p.now, &r)
	if at := psns(p.allSent()); len(at) != 0 {
		t.Errorf("sends %v after the queue pair left", at)
	}
}

// TestOnlyTheLastPacketIsSolicited: the last packet of a message says that its completion is a solicited event, where
// the request wants that; a READ never does.
func TestOnlyTheLastPacketIsSolicited(t *testing.T) {
	for _, c := range []struct {
		op    abi.Opcode
		flags uint8
		want  []bool
	}{
		{abi.OpSend, abi.SendSolicited, []bool{false, false, true}},
		{abi.OpWriteImm, abi.SendSolicited, []bool{false, false, true}},
		{abi.OpSend, ^uint8(abi.SendSolicited), []bool{false, false, false}},
		{abi.OpRead, abi.SendSolicited, []bool{false}},
	} {
		p := newPeer(t, &scripted{target: target{serving: true}})
		p.post(&transport.Request{Length: 600, WQE: abi.SendWQE{Opcode: c.op, Flags: c.flags}})
		var got []bool
		for _, h := range p.allSent() {
			got = append(got, h.BTH.Solicited)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v, flags %#x: %v, want %v", c.op, c.flags, got, c.want)
		}
	}
}

// TestTheRequesterCountsEachPacketOnce: the account has each packet and byte once.
func TestTheRequesterCountsEachPacketOnce(t *testing.T) {
	p := newPeer(t, &scripted{target: target{serving: true}})
	p.posts(abi.OpWrite, 300)
	p.posts(abi.OpSend, 10)
	p.posts(abi.OpRead, 600)
	p.posts(abi.OpFetchAdd, 8)
	if pushes, pulls := p.conn.UnderWay(); pushes != 3 || pulls != 2 {
		t.Errorf("%d and %d under way", pushes, pulls)
	}
	p.allSent()
	p.answers(ib.ReadRespFirst, 103, ib.SynAck, 256)
	p.answers(ib.ReadRespMiddle, 104, ib.SynAck, 256)
	p.answers(ib.ReadRespLast, 105, ib.SynAck, 88)
	p.answers(ib.AtomicResponse, 106, ib.SynAck, 0)
	want := transport.Counters{PushesTx: 3, PullsTx: 4, BytesTx: 310, BytesRx: 608}
	if p.acct.Counters != want {
		t.Errorf("%+v, want %+v", p.acct.Counters, want)
	}
	if pushes, pulls := p.conn.UnderWay(); pushes != 0 || pulls != 0 {
		t.Errorf("%d and %d under way at the end", pushes, pulls)
	}
}

// asking is one end that sends requests to another one that answers only when asked, as Linux does,
// over a line that loses nothing.
type asking struct {
	*world
	t      *testing.T
	now    transport.Time
	from   *roce.Conn
	own    target // its queue pair
	credit int    // packets with data may be posted while fewer are not answered

	asked  int // packets that asked for an answer
	quiet  int // since
	widest int // the most of those
}

func newAsking(t *testing.T) *asking {
	a := &asking{world: newWorld(1, false, 1500, sim.Impairment{Delay: 100e3, Rate: 1e9}), t: t, now: 1e9, credit: 1000}
	to := a.connect(1)
	a.from = a.connect(0)
	attach(t, a.from, &a.own, 17, 18)
	attach(t, to, &store{}, 18, 17)
	a.sees = func(from int, packet []byte) {
		_, b, err := wire.Parse(packet)
		var h wire.Headers
		if err == nil {
			_, err = h.Parse(b)
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case from != 0:
		case h.BTH.AckReq:
			a.asked++
			a.widest, a.quiet = max(a.widest, a.quiet), 0
		default:
			a.quiet++
		}
	}
	return a
}

// store is a sink that any READ may read.
type store struct{ sink }

func (*store) Read(uint32, uint64, uint32) (transport.Memory, transport.Refusal) {
	return zeros{}, transport.Accepted
}

type zeros struct{}

func (zeros) Read(_ uint64, dst []byte) error {
	clear(dst)
	return nil
}

// carry posts requests as soon as they are taken, and waits for their ends. Nothing may wait for a
// timer meanwhile.
func (a *asking) carry(requests []transport.Request) {
	a.t.Helper()
	begun, over := 0, 0
	for over < len(requests) {
		for begun < len(requests) && (requests[begun].WQE.Opcode == abi.OpRead || a.pending(requests[over:begun+1]) < a.credit) {
			if _, err := a.from.Issue(a.now, &requests[begun]); err != nil {
				break
			}
			if requests[begun].Issued {
				begun++
			}
		}
		done := a.own.done
		next := a.step(a.now)
		for over < begun && requests[over].Pending == 0 {
			if st := requests[over].Status; st != abi.WCSuccess {
				a.t.Fatal(st)
			}
			over++
		}
		if a.own.done == done { // else more may be posted at once
			if a.now = max(a.now+1, next); a.now > 1000e9 {
				a.t.Fatalf("%d of %d requests after a thousand seconds", over, len(requests))
			}
		}
	}
	if s := a.ports[0].Stats(); s.Timeouts+s.Again != 0 || a.quiet != 0 {
		a.t.Errorf("%d timeouts, %d sent again, %d packets behind the last that asked", s.Timeouts, s.Again, a.quiet)
	}
}

func (a *asking) pending(requests []transport.Request) (n int) {
	for i := range requests {
		n += requests[i].Pending
	}
	return n
}

func writes(count, length int) []transport.Request {
	requests := make([]transport.Request, count)
	for i := range requests {
		requests[i].Length, requests[i].WQE = uint32(length), abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}
	}
	return requests
}

// TestManyWaitingMessagesAskForFewAnswers: a message asks for one answer. If many messages wait, not each one asks, since an
// answer costs the peer a packet.
func TestManyWaitingMessagesAskForFewAnswers(t *testing.T) {
	a := newAsking(t)
	a.carry(writes(1, 8*256))
	if a.asked != 1 {
		t.Errorf("one message asks for %d answers", a.asked)
	}
	a.carry(writes(8, 256)) // the window has room
	if a.asked != 9 {
		t.Errorf("eight small ones ask for %d", a.asked-1)
	}
	for range 4 { // the window grows
		a.carry(writes(200, 256))
	}
	a.asked, a.widest = 0, 0
	const packets = 1000 * 16
	a.carry(writes(1000, 16*256))
	if a.asked > packets/32+64 || a.widest > 32 {
		t.Errorf("%d packets ask for %d answers, %d at most between two", packets, a.asked, a.widest)
	}
}

// TestNoSendingEndsWithoutAskingForAnAnswer: whatever requests follow each other, if sending stops, the last packet or one
// before it has asked for an answer.
func TestNoSendingEndsWithoutAskingForAnAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		a := newAsking(t)
		if rng.IntN(2) == 0 {
			a.credit = 1 + rng.IntN(40)
		}
		requests := writes(1+rng.IntN(60), 0)
		for i := range requests {
			r := &requests[i]
			switch rng.IntN(4) {
			case 0:
				r.Length, r.WQE.Opcode = uint32(rng.IntN(64*256)), abi.OpRead
			case 1:
				r.Length, r.WQE.Opcode = 8, abi.OpFetchAdd
			default:
				r.Length = uint32(rng.IntN(1 << (4 + rng.IntN(12))))
			}
		}
		a.carry(requests)
	}
}
