package roce

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

const (
	maxEntries = 256 // unanswered requests of a connection
	maxRead    = 64  // response packets of one READ request
)

// requester is the half of a connection that sends requests.
//
//	            front          sent            end
//	──────────────┬─────────────┬───────────────┬──
//	   answered   │  under way  │ not sent yet, │
//	              │             │ or to be again│
type requester struct {
	end     *end
	credits *credit.Node // nil: none are needed

	entries       ring.Queue[entry]
	sent          int      // of entries
	flying        int      // PSNs of these entries
	psn           wire.PSN // of the next entry
	begun         bool     // psn is set
	ahead         wire.PSN // PSN of the last packet sent at least once
	pushes, pulls int      // of entries: packets with data, READs and atomics
	reads         int      // limit of pulls
	blocked       bool     // waits for credit
	first         bool     // credit was offered, and none taken since
	kept          bool     // want is reserved for it
	want          credit.Cost
	parked        int // entries that released their credits because the peer is not ready

	repeats uint64               // requests sent again
	gone    list.Node[requester] // in shared.gone: packets were sent that nobody answers

	limit    limit
	traffic  cc.State
	paced    transport.Time // when the next packet may be sent, request or answer
	pace     timer.Handle   // armed until then
	quiet    int            // packets sent since the last one that asked for an answer
	rewound  bool           // to the first entry, and nothing was answered since
	notReady bool           // the peer was not ready: nothing is sent until its timer ends
	timer    timer.Handle   // of the retry, or of a peer that is not ready
	heard    transport.Time // when the last answer came, or the first packet in flight was sent
	rto      transport.Time // of the next retry
	rtt      roundTrip
	dead     bool // a request failed: nothing more is sent
	lastRNR  bool // the peer's last answer was that it is not ready
}

// entry is a request in progress: a packet of a SEND or WRITE, an atomic, or a READ with all of its
// responses.
type entry struct {
	r       *transport.Request
	op      ib.Opcode // without service
	psn     wire.PSN  // its first PSN
	message wire.PSN  // number of its message, 24 bits
	packets int       // number of its PSNs
	got     int       // number of a READ's responses that arrived
	offset  uint32    // of its data in the message
	length  uint32
	growing bool         // a READ to which parts may still be added
	again   bool         // it was sent before
	rnrs    int          // times that the peer was not ready
	failed  abi.WCStatus // its data could not be read
	parked  bool         // has released its credits until it is sent again
}

func (e *entry) end() wire.PSN { return e.psn.Add(e.packets) }

// next returns the first PSN that is not answered.
func (e *entry) next() wire.PSN { return e.psn.Add(e.got) }

func (e *entry) read() bool { return e.op == ib.ReadRequest }

func (e *entry) pulls() bool { return e.op.Info().Kind == ib.KindPull }

// at returns the entry with that PSN, nil if there is none. There must be entries.
func (s *requester) at(psn wire.PSN) *entry {
	if psn.Sub(s.entries.At(0).psn) < 0 {
		return nil
	}
	for i := range s.entries.Len() {
		if e := s.entries.At(i); psn.Sub(e.end()) < 0 {
			return e
		}
	}
	return nil
}

// issue implements transport.Conn.Issue. The parts of a READ are joined in one request, which is
// sent when it is complete or long enough.
func (s *requester) issue(now transport.Time, r *transport.Request) (n int, err error) {
	if !s.begun {
		s.begun, s.psn = true, wire.PSN(s.end.terms.Sending.PSN)
		s.ahead = s.psn.Add(-1)
	}
	n = int(min(r.Length-r.Offset, uint32(s.end.segment)))
	e := s.grows(r)
	if e == nil && (s.entries.Len() == maxEntries || r.Pulls() && s.pulls >= s.reads) {
		return 0, transport.ErrWindow
	}
	if err := s.takeCredit(r, n); err != nil {
		if e != nil { // its answer returns credit
			e.growing = false
			s.end.wake()
		}
		return 0, err
	}
	if e == nil {
		e = s.entries.Push()
		*e = entry{r: r, op: ib.Operation(r.WQE.Opcode, r.Offset == 0, r.Length-r.Offset <= uint32(s.end.segment)), psn: s.psn, offset: r.Offset}
		s.limit.number(e)
	}
	if r.Offset == 0 && s.end.notes.On() {
		s.end.notes.Request(trace.Issued, r, serial(s.psn))
	}
	e.packets++
	e.length += uint32(n)
	s.psn = s.psn.Add(1)
	r.Begun = true
	r.Pending++
	r.Offset += uint32(n)
	r.Issued = r.Offset == r.Length
	e.growing = e.read() && !r.Issued && e.packets < min(maxRead, s.traffic.Window)
	s.countIssued(e, n)
	if !e.growing {
		s.end.wake()
	}
	return n, nil
}

// grows returns the entry of the READ request that the next part of r joins, nil if there is none.
func (s *requester) grows(r *transport.Request) *entry {
	if n := s.entries.Len(); n > 0 {
		if e := s.entries.At(n - 1); e.growing && e.r == r {
			return e
		}
	}
	return nil
}

// countIssued counts a part of an entry.
func (s *requester) countIssued(e *entry, n int) {
	if e.pulls() {
		if s.end.account.PullsTx++; e.packets == 1 {
			s.pulls++
		}
		return
	}
	s.pushes++
	s.end.account.PushesTx++
	s.end.account.BytesTx += uint64(n)
}

// send sends the next entry, for the first time or again.
func (s *requester) send(now transport.Time, b []byte) int {
	if s.notReady || s.dead || s.end.user == nil || s.sent == s.entries.Len() {
		return 0
	}
	e := s.entries.At(s.sent)
	left := e.packets - e.got
	if s.flying == 0 {
		s.limit.raise(e.message.Add(-1)) // all messages before it are answered, whatever credits the peer reports
	}
	if !s.may(e, s.flying) {
		return 0
	}
	h := s.end.begin(e.op, e.next())
	n, ok := s.fill(h, e, b)
	if !ok {
		e.failed = abi.WCLocProtErr
		s.end.e.failing.PushBack(&s.end.failing, s.end.conn)
		return 0
	}
	if s.end.notes.On() {
		s.end.notes.Request(trace.Scheduled, e.r, serial(e.psn))
	}
	if s.end.terms.Unreliable {
		s.sent++
		s.flying += left
		s.end.e.gone.PushBack(&s.gone, s)
		return s.end.finish(h, b, n)
	}
	if !e.again {
		s.limit.sent(e)
	}
	s.quiet++
	h.BTH.AckReq = s.asks(e)
	if h.BTH.AckReq {
		s.quiet = 0
		if !e.again {
			s.rtt.sent(now, e.psn)
		}
	}
	if e.again {
		s.end.port.stats.Again++
		s.repeats++
	}
	if s.flying == 0 && !s.rewound {
		s.heard = now
	}
	if last := e.end().Add(-1); last.Sub(s.ahead) > 0 {
		s.ahead = last
	}
	s.unpark(e)
	s.sent++
	s.flying += left
	if !s.timer.Armed() {
		s.watch(now)
	}
	return s.end.finish(h, b, n)
}

// may reports whether an entry can be sent with flying packets in flight. While the peer is not
// ready, only one is sent at a time.
func (s *requester) may(e *entry, flying int) bool {
	if e.growing || e.failed != abi.WCSuccess || !s.limit.allows(e) {
		return false
	}
	return s.end.terms.Unreliable || flying == 0 || !s.lastRNR && flying+e.packets-e.got <= s.traffic.Window
}

// asks decides whether an entry asks for an answer, which costs the peer a packet. Linux answers no
// packet that does not ask. These packets ask: one in a quarter of the window, the last one of all,
// and one after which sending would stop for good, because the next packet does not fit the window
// beside those that nobody asked about, or waits for a receive of the peer. The end of a message
// asks too, for its completion, unless so much waits behind it that the next answer comes in time
// to post more.
func (s *requester) asks(e *entry) bool {
	switch {
	case e.pulls(), s.quiet >= s.traffic.Window/4, s.sent+1 == s.entries.Len():
		return true
	case e.op.Info().Last && (s.traffic.Rate > 0 || s.entries.Len()-s.sent <= s.traffic.Window/2):
		return true
	}
	return !s.may(s.entries.At(s.sent+1), s.quiet)
}

// fill fills in the headers of an entry and reads its data into b. ok is false if the data cannot
// be read.
func (s *requester) fill(h *wire.Headers, e *entry, b []byte) (n int, ok bool) {
	r, info := e.r, e.op.Info()
	h.SetRequest(&r.WQE, r.Masks)
	h.RETH.VA, h.RETH.Length = r.WQE.RemoteAddr, r.Length
	if info.Kind == ib.KindPull {
		skip := uint32(e.got * s.end.segment)
		h.RETH.VA, h.RETH.Length = r.WQE.RemoteAddr+uint64(e.offset+skip), e.length-skip
		return 0, true
	}
	h.BTH.Solicited = r.TakesReceive() && info.Last && r.WQE.Flags&abi.SendSolicited != 0
	if n = int(e.length); n == 0 {
		return 0, true
	}
	at := s.end.dataAt(h)
	return n, s.end.user.Gather(r, e.offset, b[at:at+n]) == nil
}

// burst is how much may be sent at once under a rate limit, as time at that rate in ns.
const burst transport.Time = 100e3

// held reports whether the rate forbids to send a packet now. If so, it arms a timer.
func (s *requester) held(now transport.Time) bool {
	s.end.e.congestion.Sent(&s.traffic, now, 0)
	if s.traffic.Rate == 0 || now+burst >= s.paced {
		return false
	}
	s.end.arm(&s.pace, kindPace, s.paced-burst)
	return true
}

// left records that a packet of n bytes was sent.
func (s *requester) left(now transport.Time, n int) {
	s.end.e.congestion.Sent(&s.traffic, now, n)
	if r := s.traffic.Rate; r > 0 {
		s.paced = max(s.paced, now) + transport.Time(float64(n)*1e9/r)
	}
}

// retireSent completes the packets that were sent.
func (s *requester) retireSent(now transport.Time) {
	for s.sent > 0 {
		s.retire(now, abi.WCSuccess, 0)
	}
	s.end.settle(now)
}

// drop discards all entries.
func (s *requester) drop() {
	for i := range s.entries.Len() {
		s.returnCredits(s.entries.At(i))
	}
	for s.entries.Len() > 0 {
		s.entries.Pop().r = nil
	}
	s.sent, s.flying, s.pushes, s.pulls = 0, 0, 0, 0
	s.notReady = false
	s.waitNoMore()
	s.release()
	s.end.stop(&s.timer)
	s.gone.Remove()
}
