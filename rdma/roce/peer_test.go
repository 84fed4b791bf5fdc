package roce_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// peer is the other device of a connection, played by a test: it sends what the test likes and
// sees each packet that the connection sends. Both sides begin with PSN 100.
type peer struct {
	*world
	t       testing.TB
	credits *credit.Node // that the connection uses; nil: none
	conn    *roce.Conn
	qpn     uint32   // of its queue pair
	way     wire.Way // of the peer's packets
	pkey    uint16   // of those; 0: the default
	now     transport.Time
	acct    transport.Account
}

const segment = 256 // bytes of data in a full packet

// newPeer attaches the connection of queue pair 17 to e, with terms that change may alter.
func newPeer(t testing.TB, e transport.Endpoint, change ...func(*transport.Terms)) *peer {
	t.Helper()
	p := &peer{world: newWorld(1, false, 1500, sim.Impairment{}), t: t, now: 1e9}
	p.attach(e, change...)
	return p
}

// attach does so in a world that there is.
func (p *peer) attach(e transport.Endpoint, change ...func(*transport.Terms)) {
	p.t.Helper()
	p.conn = p.ports[0].Open(0, transport.Way{Peer: p.ports[1].Addr}, p.credits).(*roce.Conn)
	p.way = wire.Way{Src: p.ports[1].Addr, Dst: p.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
	x := transport.Terms{
		Endpoint: e, QPN: 17, Peer: 18, PathMTU: segment, Serves: 16, Reads: 16, PSN: 100,
		Sending: &transport.Sending{PSN: 100, Timeout: 14, RetryCount: 7}, Account: &p.acct,
	}
	for _, c := range change {
		c(&x)
	}
	p.qpn = x.QPN
	if _, ok := p.conn.Attach(&x); !ok {
		p.t.Fatal("not attached")
	}
}

// sends delivers a packet with n bytes of data.
func (p *peer) sends(h wire.Headers, n int) {
	h.BTH.DestQP, h.BTH.PKey, h.BTH.Pad = p.qpn, wire.DefaultPKey, uint8(ib.PadLen(n))
	if p.pkey != 0 {
		h.BTH.PKey = p.pkey
	}
	b := append(h.Append(make([]byte, p.way.HeaderLen())), make([]byte, n+ib.PadLen(n)+wire.ICRCLen)...)
	p.way.Put(b)
	p.ports[0].Receive(p.now, b)
}

// asks sends a request that wants an answer. Of a READ n is what it wants, of others their data.
func (p *peer) asks(op ib.Opcode, psn, n int) {
	h := wire.Headers{
		BTH:      wire.BTH{Opcode: op, PSN: wire.PSN(psn) & wire.PSNMask, AckReq: true},
		Extended: ib.Extended{RETH: ib.RETH{RKey: 7, Length: uint32(n)}, Atomic: ib.AtomicETH{RKey: 7}},
	}
	if op.Info().Kind != ib.KindData {
		n = 0
	}
	p.sends(h, n)
}

// answers sends a response with n bytes of data, or an acknowledgement that says syndrome.
func (p *peer) answers(op ib.Opcode, psn int, syndrome ib.Syndrome, n int) {
	p.sends(wire.Headers{BTH: wire.BTH{Opcode: op, PSN: wire.PSN(psn) & wire.PSNMask}, Extended: ib.Extended{AETH: ib.AETH{Syndrome: syndrome}}}, n)
}

func (p *peer) acks(psn int) { p.answers(ib.Acknowledge, psn, ib.SynAck, 0) }

func (p *peer) naks(psn int, syndrome ib.Syndrome) { p.answers(ib.Acknowledge, psn, syndrome, 0) }

// serves answers requests as a device does.
func (p *peer) serves(list []heard) {
	for i := range list {
		switch h := &list[i]; {
		case h.BTH.Opcode == ib.ReadRequest:
			for at, left := 0, int(h.RETH.Length); at == 0 || left > 0; at, left = at+1, left-segment {
				op := ib.ReadRespMiddle
				if left <= segment {
					op = ib.ReadRespLast
				}
				p.answers(op, int(h.BTH.PSN)+at, ib.SynAck, min(left, segment))
			}
		case h.BTH.Opcode.Info().Kind != ib.KindData:
			p.answers(ib.AtomicResponse, int(h.BTH.PSN), ib.SynAck, 0)
		case h.BTH.AckReq:
			p.acks(int(h.BTH.PSN))
		}
	}
}

// posts has the connection take a request of n bytes, as many packets as it has.
func (p *peer) posts(op abi.Opcode, n int) *transport.Request {
	p.t.Helper()
	r := &transport.Request{Length: uint32(n), WQE: abi.SendWQE{Opcode: op, RKey: 7}}
	p.post(r)
	return r
}

func (p *peer) post(r *transport.Request) {
	p.t.Helper()
	for !r.Issued {
		if _, err := p.conn.Issue(p.now, r); err != nil {
			p.t.Fatal(err)
		}
	}
}

// heard is a packet that the connection sent.
type heard struct {
	wire.Headers
	way  wire.Way
	data int // bytes
	size int // of the IP packet
}

// next returns the next packet that the connection sends now, if there is one.
func (p *peer) next() (h heard, ok bool) {
	p.t.Helper()
	h.size, _ = p.engines[0].Transmit(p.now, p.packet[:])
	if h.size == 0 {
		return h, false
	}
	way, part, err := wire.Parse(p.packet[:h.size])
	n := 0
	if err == nil {
		n, err = h.Parse(part)
	}
	data, whole := h.BTH.Data(part, n)
	if err != nil || !whole {
		p.t.Fatalf("sent what is no packet: %v", err)
	}
	h.way, h.data = way, len(data)
	return h, true
}

// allSent returns all packets that the connection sends now.
func (p *peer) allSent() (list []heard) {
	p.t.Helper()
	for p.engines[0].Run(p.now) {
	}
	for h, ok := p.next(); ok; h, ok = p.next() {
		if list = append(list, h); len(list) > 5000 {
			p.t.Fatal("sends without end")
		}
	}
	return list
}

// psns returns the packets' PSNs minus 100.
func psns(list []heard) (at []int) {
	for i := range list {
		at = append(at, list[i].BTH.PSN.Sub(100))
	}
	return at
}

// scripted is an endpoint that answers as the test sets, and records its calls.
type scripted struct {
	target
	verdict transport.Verdict // of every packet
	refusal transport.Refusal // of every READ and atomic
	gone    bool              // the memory that is gathered from, scattered to and read by the peer
	onDone  func()
	onRNR   func()
	rate    func(now transport.Time) transport.Time // when a READ may be answered

	packets   []transport.Packet
	lengths   []uint64 // of messages
	statuses  []abi.WCStatus
	vendors   []uint32
	notReady  []int
	refused   []transport.Refusal
	unblocked int
}

var errGone = errors.New("gone")

func (e *scripted) Gather(r *transport.Request, offset uint32, dst []byte) error {
	if e.gone {
		return errGone
	}
	return e.target.Gather(r, offset, dst)
}

func (e *scripted) Scatter(r *transport.Request, offset uint32, src []byte) error {
	if e.gone {
		return errGone
	}
	return e.target.Scatter(r, offset, src)
}

func (e *scripted) Done(now transport.Time, r *transport.Request, st abi.WCStatus, vendor uint32) {
	e.target.Done(now, r, st, vendor)
	e.statuses, e.vendors = append(e.statuses, st), append(e.vendors, vendor)
	if e.onDone != nil {
		e.onDone()
	}
}

func (e *scripted) PeerNotReady(_ transport.Time, _ *transport.Request, times int) {
	e.notReady = append(e.notReady, times)
	if e.onRNR != nil {
		e.onRNR()
	}
}

func (e *scripted) Place(_ transport.Time, p *transport.Packet, _ []byte) transport.Verdict {
	e.packets = append(e.packets, *p)
	return e.verdict
}

func (e *scripted) Complete(_ transport.Time, _ *transport.Packet, n uint64, _ abi.WCStatus) {
	e.lengths = append(e.lengths, n)
}

func (e *scripted) Refused(_ transport.Time, r transport.Refusal) {
	e.refused = append(e.refused, r)
	e.serving = false
}

func (e *scripted) Read(uint32, uint64, uint32) (transport.Memory, transport.Refusal) {
	return pages{e}, e.refusal
}

type pages struct{ e *scripted }

func (m pages) Read(_ uint64, dst []byte) error {
	if m.e.gone {
		return errGone
	}
	clear(dst)
	return nil
}

func (e *scripted) Atomic(*transport.Atomic) (uint64, transport.Refusal) { return 1, e.refusal }

func (e *scripted) AnswerAt(now transport.Time) transport.Time {
	if e.rate != nil {
		return e.rate(now)
	}
	return now
}

func (e *scripted) Unblocked(transport.Time) { e.unblocked++ }
