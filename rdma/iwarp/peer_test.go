package iwarp_test

import (
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// peer is the other end of a connection, played by a test byte by byte.
type peer struct {
	t      iwarptest.T
	e      *iwarp.Engine
	c      *iwarp.Conn
	end    *endpoint
	now    transport.Time
	crc    bool
	packet [1 << 16]byte
	events []iwarp.Event
}

// segment is what an end has sent in one FPDU.
type segment struct {
	wire.Header
	body []byte
}

// called returns the peer that has opened a TCP connection. It has sent nothing yet.
func called(t iwarptest.T) *peer {
	p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t), now: 1e9}
	p.c = p.e.Answer(p.now, 1460)
	return p
}

// connected returns the peer that has opened a connection, which has an endpoint.
func connected(t iwarptest.T) *peer {
	p := called(t)
	p.send(usualRequest().Append(nil))
	s := iwarptest.Usual()
	p.c.Accept(p.now, &s)
	p.crc = true
	p.frame(true)
	p.end.attach(p.c)
	return p
}

// usualRequest returns the usual frame of a peer.
func usualRequest() *wire.Frame {
	return &wire.Frame{CRC: true, Revision: 2, HasEnhanced: true, Enhanced: wire.Enhanced{IRD: 16, ORD: 16}}
}

// send sends bytes.
func (p *peer) send(b []byte) {
	p.t.Helper()
	if n := p.c.Receive(p.now, b); n != len(b) {
		p.t.Fatalf("%d of %d bytes are taken", n, len(b))
	}
	p.run()
}

// message sends a segment.
func (p *peer) message(h wire.Header, body []byte) {
	p.t.Helper()
	p.send(fpdu(h, body, p.crc))
}

func (p *peer) run() {
	p.e.Run(p.now)
	for _, what, ok := p.e.Next(); ok; _, what, ok = p.e.Next() {
		p.events = append(p.events, what)
	}
}

// next returns the next bytes of the other end, nil if there are none.
func (p *peer) next() []byte {
	p.c.Room(1 << 16)
	n, _ := p.e.Transmit(p.now, p.packet[:])
	p.run()
	return p.packet[:n]
}

// frame returns the other end's frame.
func (p *peer) frame(reply bool) wire.Frame {
	p.t.Helper()
	b := p.next()
	f, n, err := wire.ParseFrame(b, reply)
	if err != nil || n != len(b) {
		p.t.Fatalf("frame %q: %v", b, err)
	}
	return f
}

// segments returns what the other end sends in FPDUs.
func (p *peer) segments() (list []segment) {
	p.t.Helper()
	for b := p.next(); len(b) > 0; b = p.next() {
		ulpdu, n, err := wire.ParseFPDU(b, p.crc)
		if err != nil || n != len(b) {
			p.t.Fatalf("FPDU % x: %v", b, err)
		}
		h, n, err := wire.ParseHeader(ulpdu)
		if err != nil {
			p.t.Fatalf("ULPDU % x: %v", ulpdu, err)
		}
		list = append(list, segment{h, append([]byte(nil), ulpdu[n:]...)})
	}
	return list
}

// terminated returns the Terminate with which the other end ends the stream.
func (p *peer) terminated() wire.Terminate {
	p.t.Helper()
	list := p.segments()
	if len(list) == 0 || list[len(list)-1].Opcode != wire.OpTerminate {
		p.t.Fatalf("the stream ends with %+v", list)
	}
	last := list[len(list)-1]
	t, err := wire.ParseTerminate(last.body)
	if err != nil || last.MSN != 1 || last.MO != 0 || !last.Last {
		p.t.Fatalf("%+v, %v", last, err)
	}
	if n := len(p.events); n == 0 || p.events[n-1] != iwarp.Finish {
		p.t.Fatalf("events %v behind a Terminate", p.events)
	}
	return t
}
