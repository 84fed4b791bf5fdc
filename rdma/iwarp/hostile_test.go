package iwarp_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

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

// TestStreamsThatAreCutAnywhereMeanTheSame: both ends send messages of all kinds at once; every one
// arrives with its data, in order, whatever happens to the stream on its way.
func TestStreamsThatAreCutAnywhereMeanTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t, rapid.Uint64().Draw(t, "seed"), drawShape(t))
		ops := rapid.SampledFrom([]abi.Opcode{abi.OpSend, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpFetchAdd})
		const readable = 1 << 15 // what is behind it nobody writes
		var memory [2][]byte
		for i, e := range p.ends {
			for at := range readable {
				e.memory[readable+at] = byte(at*3 + i)
			}
			memory[i] = bytes.Clone(e.memory)
		}
		var want [2][][]byte // SENDs
		for i, e := range p.ends {
			other := memory[1-i]
			for n := range rapid.IntRange(0, 25).Draw(t, "requests") {
				x := abi.SendWQE{Opcode: ops.Draw(t, "op"), Imm: key, CompareAdd: 3}
				size := rapid.IntRange(0, 9000).Draw(t, "size")
				switch x.Opcode {
				case abi.OpRead:
					x.RemoteAddr = readable + uint64(rapid.IntRange(0, 20000).Draw(t, "from"))
				case abi.OpFetchAdd:
					size = 8
				default:
					x.RemoteAddr = 8 + uint64(rapid.IntRange(0, 20000).Draw(t, "to"))
				}
				r := e.post(x, size)
				if r.Pulls() {
					if x.Opcode == abi.OpFetchAdd {
						other[0] += 3
					}
					continue
				}
				for at := range r.data {
					r.data[at] = byte(at*n + i)
				}
				switch x.Opcode {
				case abi.OpSend, abi.OpSendInv:
					want[1-i] = append(want[1-i], r.data)
				default:
					copy(other[x.RemoteAddr:], r.data)
				}
				if r.TakesReceive() {
					p.ends[1-i].receives++
				}
			}
		}
		p.until(p.over)
		for i, e := range p.ends {
			for _, r := range e.requests {
				if r.Status != abi.WCSuccess || r.Pending != 0 {
					t.Fatalf("%v: %v", r.WQE.Opcode, r.Status)
				}
				if r.Reads() && !bytes.Equal(r.data, memory[1-i][r.WQE.RemoteAddr:][:len(r.data)]) {
					t.Fatal("a READ got other data")
				}
			}
			if !bytes.Equal(e.memory, memory[i]) || e.receives != 0 || e.ended {
				t.Fatalf("memory differs, or %d receives are left, or it ended: %q", e.receives, e.why)
			}
			next := 0
			for _, m := range e.messages {
				if m.op == abi.OpWriteImm {
					continue
				}
				if !bytes.Equal(m.data, want[i][next]) {
					t.Fatalf("SEND %d has other data", next)
				}
				next++
			}
			if next != len(want[i]) {
				t.Fatalf("%d SENDs of %d", next, len(want[i]))
			}
		}
	})
}

// TestFPDUsCostNoMemory: in steady state nothing is allocated for a message of any kind, whether its
// FPDUs come whole or in pieces.
func TestFPDUsCostNoMemory(t *testing.T) {
	for _, s := range []iwarptest.Shape{{}, {Cut: 700}} {
		p := newPair(t, 1, s)
		p.ends[1].quiet, p.ends[0].quiet = true, true
		var list []*request
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm, abi.OpRead, abi.OpFetchAdd, abi.OpMaskedCmpSwap} {
			n := 4000
			if op > abi.OpRead && op != abi.OpWriteImm {
				n = 8
			}
			r := p.ends[0].post(abi.SendWQE{Opcode: op, Imm: key}, n)
			if r.Atomic() {
				r.Length, r.data = 8, r.data[:8]
			}
			list = append(list, r)
		}
		round := func() {
			p.ends[0].next, p.ends[1].receives = 0, 2
			for _, r := range list {
				r.over, r.placed = false, 0
				r.Request = transport.Request{WQE: r.WQE, Length: r.Length, Slot: r.Slot}
			}
			for !p.over() {
				p.Step(p.now)
				p.ends[0].issue(p.now)
			}
		}
		for range 20 {
			round()
		}
		if n := testing.AllocsPerRun(100, round); n > 0 {
			t.Errorf("cut at %d: %v allocations for %d messages", s.Cut, n, len(list))
		}
	}
}
