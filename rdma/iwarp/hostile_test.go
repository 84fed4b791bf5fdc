package iwarp_test

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// converse plays a peer that a script of bytes drives: frames and FPDUs, right and wrong, with headers
// near the right ones, raw bytes, acknowledgements of anything, the end of the stream. At any time the
// other end must hold to its bounds.
func converse(t iwarptest.T, script []byte) {
	take := func(n int) []byte {
		b := script[:min(n, len(script))]
		script = script[len(b):]
		return append(make([]byte, n-len(b)), b...)
	}
	p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t), now: 1e9}
	settings := iwarptest.Usual()
	setup := take(1)[0]
	settings.CRC = setup&1 != 0
	if setup&2 != 0 {
		p.c = p.e.Connect(p.now, 1460, &settings)
	} else {
		p.c = p.e.Answer(p.now, 1460)
	}
	given := false
	for len(script) > 0 {
		switch x := take(2); x[0] % 16 {
		case 0: // raw bytes
			p.c.Receive(p.now, take(int(x[1])))
		case 1: // a frame
			f := wire.Frame{Reply: setup&2 != 0, CRC: x[1]&1 != 0, Markers: x[1]&2 != 0, Reject: x[1]&0xc == 0xc, Revision: 1 + x[1]>>4&1, HasEnhanced: true}
			f.Enhanced = wire.Enhanced{PeerToPeer: x[1]&0x20 != 0, RTR: wire.RTR(x[1] >> 5), IRD: uint16(x[1]), ORD: uint16(x[1] >> 4)}
			p.c.Receive(p.now, f.Append(nil))
		case 2, 3, 4, 5, 6, 7: // an FPDU
			b := take(8)
			h := wire.Header{Opcode: wire.Opcode(x[1] & 0xf), Last: x[1]&0x10 != 0, MSN: uint32(b[0]), MO: uint32(b[1]), TO: uint64(b[1]) * 300, STag: key, Invalidate: key}
			if b[2]&7 == 0 {
				h.STag, h.Invalidate = uint32(b[3]), uint32(b[3])
			}
			body := take(int(b[4]) * 8)
			switch h.Opcode {
			case wire.OpReadRequest:
				body = (&wire.ReadRequest{SinkSTag: uint32(b[3]), Size: uint32(b[4]) << (b[5] & 31), SourceSTag: h.STag, SourceTO: h.TO}).Append(nil)
			case wire.OpAtomicRequest:
				body = (&wire.AtomicRequest{Opcode: wire.AtomicOpcode(b[5] & 3), STag: h.STag, TO: h.TO &^ 7}).Append(nil)
			case wire.OpAtomicResponse:
				body = (&wire.AtomicResponse{ID: uint32(b[5])}).Append(nil)
			case wire.OpImmediate, wire.OpImmediateSE:
				body = make([]byte, 8)
			case wire.OpTerminate:
				terminate := wire.Terminate{Cause: wire.Cause(b[5])<<8 | wire.Cause(b[6])}
				terminate.SetSegment(body)
				body = terminate.Append(nil)
			}
			p.c.Receive(p.now, fpdu(h, body, settings.CRC))
		case 8:
			p.c.Acknowledged(p.now, p.c.Written()-min(p.c.Written(), uint64(x[1])))
		case 9: // requests of this end
			ops := []abi.Opcode{abi.OpSend, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpFetchAdd, abi.OpCmpSwap, abi.OpSendImm}
			r := p.end.post(abi.SendWQE{Opcode: ops[x[1]&7]}, int(x[1])*16)
			if r.Atomic() {
				r.Length, r.data = 8, make([]byte, 8)
			}
			r.gone = x[1] == 0xff
		case 10:
			p.end.receives += int(x[1] & 3)
		case 11:
			p.now += transport.Time(x[1]) * 1e8
			p.end.later = transport.Time(x[1]) * 1e6
		case 12:
			if x[1]&3 == 0 {
				p.end.unready = true
			}
		case 13:
			if x[1] > 200 {
				p.c.PeerClosed(p.now)
			}
		case 14:
			switch {
			case x[1] > 240:
				p.c.Lost(p.now, "lost")
			case x[1] > 220 && given && !p.end.ended:
				p.c.Close(p.now)
				p.end.ended = true
			}
		case 15: // what it sends
			for range x[1] & 7 {
				p.next()
			}
		}
		p.run()
		if n := len(p.events); n > 0 && !given && (p.events[n-1] == iwarp.Requested || p.events[n-1] == iwarp.Established) {
			p.c.Accept(p.now, &settings)
			given = true
			p.end.attach(p.c)
		}
		if given {
			p.end.issue(p.now)
		}
		if s := p.e.Stats(); s.Buffered > 1<<17 || s.Conns > 1 {
			t.Fatalf("%+v", s)
		}
	}
	p.c.Lost(p.now, "the end")
	p.run()
	gone := 0
	for _, what := range p.events {
		if what == iwarp.Gone {
			gone++
		}
	}
	if s := p.e.Stats(); gone != 1 || s.Buffered != 0 || s.Conns != 0 || given && !p.end.ended {
		t.Fatalf("gone %d times, %+v, given %t, ended %t", gone, s, given, p.end.ended)
	}
}

// TestNothingThatAPeerSendsBreaksTheBounds plays random conversations.
func TestNothingThatAPeerSendsBreaksTheBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		script := make([]byte, 20+rng.IntN(600))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		converse(t, script)
	}
}

// FuzzConversation is TestNothingThatAPeerSendsBreaksTheBounds for scripts that the fuzzer finds.
func FuzzConversation(f *testing.F) {
	f.Add([]byte{1, 1, 0x11, 10, 3, 3, 0x13, 1, 0, 1, 0, 0, 0, 0, 0, 15, 7})
	f.Add([]byte{3, 1, 0x11, 9, 4, 15, 7, 8, 0, 3, 0x12, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{1, 1, 0x11, 3, 0x1a, 1, 0, 1, 0, 0, 0, 0, 0, 3, 0x11, 2, 0, 1, 9, 9, 3, 0, 0, 15, 7, 13, 255, 15, 7})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 1<<14 {
			converse(t, script)
		}
	})
}
