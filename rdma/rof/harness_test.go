package rof

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

const (
	testQPN     = 17
	testPeer    = 18
	testSegment = 256
	testNow     = falcon.Time(1e9)
)

// call is a call that a connection made to its pipe.
type call struct {
	what   string
	tag    uint64
	rsn    uint32
	length int // of the packet
	most   int // of the response
	code   falconwire.NackCode
	rnr    uint8
	ulp    uint8
	at     falcon.Time
}

// pipe is a pipe that carries nothing. It records the calls, and the test acts as the peer.
type pipe struct {
	cfg   falcon.ConnConfig
	calls []call
	err   error // of Push, PushLast, Pull and RespondPull
}

func (p *pipe) note(c call) { p.calls = append(p.calls, c) }

// last returns the last call; its name is empty if there is none.
func (p *pipe) last() (c call) {
	if len(p.calls) > 0 {
		c = p.calls[len(p.calls)-1]
	}
	return c
}

// newPipe makes a pipe for datagrams of at most segment bytes.
func newPipe(segment int) *pipe {
	return &pipe{cfg: falcon.ConnConfig{LocalCID: 5, MTU: segment + wire.Opcodes[ib.UD|ib.SendOnlyImm].Len}}
}

// sent returns the tags of the last pushes of messages.
func (p *pipe) sent() (tags []uint64) {
	for _, c := range p.calls {
		if c.what == "last push" {
			tags = append(tags, c.tag)
		}
	}
	return tags
}

// closed returns how often the pipe was closed.
func (p *pipe) closed() (n int) {
	for _, c := range p.calls {
		if c.what == "close" {
			n++
		}
	}
	return n
}

func (p *pipe) issue(c call) error {
	if p.err == nil {
		p.note(c)
	}
	return p.err
}

func (p *pipe) Config() *falcon.ConnConfig { return &p.cfg }
func (p *pipe) SetUser(any)                {}

func (p *pipe) Push(_ falcon.Time, tag uint64, length int) error {
	return p.issue(call{what: "push", tag: tag, length: length})
}

func (p *pipe) PushLast(_ falcon.Time, tag uint64, length int) error {
	return p.issue(call{what: "last push", tag: tag, length: length})
}

func (p *pipe) Pull(_ falcon.Time, tag uint64, reqLen, respLen int) error {
	return p.issue(call{what: "pull", tag: tag, length: reqLen, most: respLen})
}

func (p *pipe) AckPush(_ falcon.Time, rsn uint32) { p.note(call{what: "ack", rsn: rsn}) }

func (p *pipe) NackPush(_ falcon.Time, rsn uint32, code falconwire.NackCode, rnr, ulp uint8) {
	p.note(call{what: "nack", rsn: rsn, code: code, rnr: rnr, ulp: ulp})
}

func (p *pipe) RespondPull(_ falcon.Time, rsn uint32, tag uint64, length int) error {
	return p.issue(call{what: "respond", rsn: rsn, tag: tag, length: length})
}

func (p *pipe) DeferPull(_ falcon.Time, rsn uint32, until falcon.Time) {
	p.note(call{what: "defer", rsn: rsn, at: until})
}

func (p *pipe) Drain(falcon.Time) { p.note(call{what: "drain"}) }
func (p *pipe) Close(falcon.Time) { p.note(call{what: "close"}) }

func (p *pipe) Abort(_ falcon.Time, reason falcon.CloseReason) {
	p.note(call{what: "abort", ulp: uint8(reason)})
}

// completion is a message that a connection said is complete.
type completion struct {
	number uint32
	bytes  uint64
	failed abi.WCStatus
}

// outcome is the result of a packet of a request.
type outcome struct {
	st     abi.WCStatus
	vendor uint32
}

var errMemory = errors.New("gone")

// endpoint is a queue pair that answers as the test sets, and records its calls.
type endpoint struct {
	account transport.Account

	serving  bool
	stops    bool // with the next packet that is placed
	verdict  transport.Verdict
	timer    uint8
	rate     falcon.Time // AnswerAt
	noSRQ    bool        // packets name no queue that is reached this way
	refusal  transport.Refusal
	original uint64                                  // of atomics
	element  func(offset uint32) (left uint32)       // nil: all that is left of the request
	gone     bool                                    // memory is not to be had
	complete func(p *transport.Packet, n completion) // may be nil

	heard, settled, unblocked, unanswered int

	placed    []transport.Packet
	data      [][]byte
	completed []completion
	refused   []transport.Refusal
	atomics   []transport.Atomic
	answered  []int
	done      []outcome
	notReady  []int
	scattered []byte
	reads     int // of memory
	ended     []abi.WCStatus
}

func (e *endpoint) Gather(_ *transport.Request, offset uint32, dst []byte) error {
	if e.gone {
		return errMemory
	}
	for i := range dst {
		dst[i] = byte(offset) + byte(i) | 1
	}
	return nil
}

func (e *endpoint) Element(r *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	left = r.Length - offset
	if e.element != nil {
		left = e.element(offset)
	}
	return 0x5000 + uint64(offset), 0x99, left
}

func (e *endpoint) Scatter(_ *transport.Request, offset uint32, src []byte) error {
	if e.gone {
		return errMemory
	}
	if need := int(offset) + len(src); len(e.scattered) < need {
		e.scattered = append(e.scattered, make([]byte, need-len(e.scattered))...)
	}
	copy(e.scattered[offset:], src)
	return nil
}

func (e *endpoint) Done(_ falcon.Time, _ *transport.Request, st abi.WCStatus, vendor uint32) {
	e.done = append(e.done, outcome{st, vendor})
}

func (e *endpoint) PeerNotReady(_ falcon.Time, _ *transport.Request, times int) {
	e.notReady = append(e.notReady, times)
}

func (e *endpoint) Unanswered(falcon.Time, *transport.Request) { e.unanswered++ }
func (e *endpoint) Serving() bool                              { return e.serving }
func (e *endpoint) Heard()                                     { e.heard++ }
func (e *endpoint) Address(uint32) bool                        { return !e.noSRQ }

func (e *endpoint) Place(_ falcon.Time, p *transport.Packet, data []byte) transport.Verdict {
	e.placed, e.data = append(e.placed, *p), append(e.data, append([]byte{}, data...))
	e.serving = e.serving && !e.stops
	return e.verdict
}

func (e *endpoint) Complete(_ falcon.Time, p *transport.Packet, n uint64, failed abi.WCStatus) {
	c := completion{p.Message, n, failed}
	e.completed = append(e.completed, c)
	if e.complete != nil {
		e.complete(p, c)
	}
}

func (e *endpoint) Refused(_ falcon.Time, r transport.Refusal) { e.refused = append(e.refused, r) }

func (e *endpoint) Read(uint32, uint64, uint32) (transport.Memory, transport.Refusal) {
	return memory{e}, e.refusal
}

// memory is what READs of the peer read: each byte is the low part of its address.
type memory struct{ of *endpoint }

func (m memory) Read(addr uint64, dst []byte) error {
	m.of.reads++
	if m.of.gone {
		return errMemory
	}
	for i := range dst {
		dst[i] = byte(addr) + byte(i)
	}
	return nil
}

func (e *endpoint) Atomic(x *transport.Atomic) (uint64, transport.Refusal) {
	e.atomics = append(e.atomics, *x)
	return e.original, e.refusal
}

func (e *endpoint) Receives() (n int, counted bool) { return 0, false }

func (e *endpoint) RNRTimer() uint8                      { return e.timer }
func (e *endpoint) AnswerAt(now falcon.Time) falcon.Time { return max(now, e.rate) }
func (e *endpoint) Answered(n int)                       { e.answered = append(e.answered, n) }
func (e *endpoint) Unblocked(falcon.Time)                { e.unblocked++ }
func (e *endpoint) Settle(falcon.Time)                   { e.settled++ }

func (e *endpoint) Ended(_ falcon.Time, st abi.WCStatus, _ string) { e.ended = append(e.ended, st) }

// stage is a connection between a queue pair and a pipe of the test.
type stage struct {
	*Conn
	t    testing.TB
	pipe *pipe
	user *endpoint
	rsn  uint32 // of the peer's next request
}

// newStage makes a connection; change may be nil.
func newStage(t testing.TB, ordered bool, change func(*transport.Terms)) *stage {
	t.Helper()
	s := &stage{
		t: t, pipe: &pipe{cfg: falcon.ConnConfig{LocalCID: 5, Ordered: ordered, MTU: 4096}},
		user: &endpoint{serving: true},
	}
	s.Conn = New().Over(s.pipe)
	terms := &transport.Terms{
		Endpoint: s.user, QPN: testQPN, Peer: testPeer, PathMTU: testSegment, Serves: 16, Reads: 16, Account: &s.user.account,
	}
	if change != nil {
		change(terms)
	}
	if segment, ok := s.Attach(terms); !ok || segment != testSegment {
		t.Fatalf("attached: %t, %d bytes a packet", ok, segment)
	}
	return s
}

// packet is a packet of the peer with its data.
func packet(h wire.Headers, data []byte) []byte {
	h.RBTH.Pad = uint8(ib.PadLen(len(data)))
	return append(append(h.Append(nil), data...), make([]byte, h.RBTH.Pad)...)
}

// headers are those of a request of the peer to this queue pair.
func headers(op ib.Opcode, sn uint32) wire.Headers {
	return wire.Headers{RBTH: wire.RBTH{Opcode: op, DestQP: testQPN, SN: sn}}
}

// push has the peer send a packet with data, and says how it is answered.
func (s *stage) push(h wire.Headers, data []byte) call { return s.pushRaw(packet(h, data)) }

func (s *stage) pushRaw(b []byte) call {
	s.rsn++
	s.Handle(testNow, &falcon.Event{Kind: falcon.EvPush, RSN: s.rsn, Data: b})
	return s.pipe.last()
}

// pull has the peer ask for a response of as many bytes.
func (s *stage) pull(h wire.Headers, asked int) call { return s.pullRaw(packet(h, nil), asked) }

func (s *stage) pullRaw(b []byte, asked int) call {
	s.rsn++
	s.Handle(testNow, &falcon.Event{Kind: falcon.EvPull, RSN: s.rsn, Data: b, Length: asked})
	return s.pipe.last()
}

// response is the packet that answers a pull, as it is sent.
func (s *stage) response(c call) (h wire.Headers, data []byte, err error) {
	s.t.Helper()
	b := make([]byte, c.length)
	n, err := s.Fill(falcon.TxnPullData, c.tag, b)
	if err != nil {
		return h, nil, err
	}
	k, err := h.Parse(b[:n])
	if end := n - int(h.RBTH.Pad); err == nil && end >= k {
		return h, b[k:end], nil // also where the peer did not count the pad, and it is no whole words
	}
	s.t.Fatalf("response % x: %v", b[:n], err)
	return h, nil, nil
}

// issue hands on the next packet of a request.
func (s *stage) issue(r *transport.Request) call {
	s.t.Helper()
	if _, err := s.Issue(testNow, r); err != nil {
		s.t.Fatal(err)
	}
	return s.pipe.last()
}

// request is the packet of a request, as it is sent.
func (s *stage) request(c call) (h wire.Headers, data []byte) {
	s.t.Helper()
	kind := falcon.TxnPush
	if c.what == "pull" {
		kind = falcon.TxnPull
	}
	b := make([]byte, c.length)
	n, err := s.Fill(kind, c.tag, b)
	if err != nil || n != c.length {
		s.t.Fatalf("a packet of %d bytes: %d, %v", c.length, n, err)
	}
	k, err := h.Parse(b)
	data, ok := h.RBTH.Data(b, k)
	if err != nil || !ok {
		s.t.Fatalf("request % x: %v", b, err)
	}
	return h, data
}

// answer makes the pipe complete a transaction of this end.
func (s *stage) answer(c call, code falcon.Completion, syn ib.Syndrome, response []byte) {
	kind := falcon.EvPushDone
	if c.what == "pull" {
		kind = falcon.EvPullDone
	}
	s.Handle(testNow, &falcon.Event{Kind: kind, Tag: c.tag, Code: code, ULPCode: uint8(syn), Data: response})
}

// trace has the connection's events noted from here on.
func (s *stage) trace(qpn uint32) *trace.Ring {
	at := int64(0)
	r := trace.NewRing(64, func() int64 { at++; return at }, qpn)
	s.user.account.Trace = r
	return r
}
