package iwarp_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

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

// behindTheReadyMessage returns an end that connected and whose first message is a READ of no bytes, as the
// peer wants it, with that READ.
func behindTheReadyMessage(t *testing.T) (*peer, wire.ReadRequest) {
	t.Helper()
	p := &peer{t: t, e: iwarp.New(), end: newEndpoint(t), crc: true}
	s := iwarptest.Usual()
	p.c = p.e.Connect(0, 1460, &s)
	p.frame(false)
	reply := wire.Frame{Reply: true, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: wire.Enhanced{PeerToPeer: true, RTR: wire.RTRRead, IRD: 1, ORD: 1}}
	p.send(reply.Append(nil))
	if _, ok := p.c.Attach(&transport.Terms{Endpoint: p.end, QPN: 1, PathMTU: 1 << 16, Serves: 16, Reads: 16, Account: &p.end.account}); !ok {
		t.Fatal("not attached")
	}
	p.end.conn = p.c
	r, _ := wire.ParseReadRequest(p.segments()[0].body)
	return p, r
}

// TestAReadBehindTheReadyMessageIsWoken: the READ that makes the stream ready (RFC 6581 §7) takes a place of
// those in flight, and a READ that waits for it goes on when it is answered.
func TestAReadBehindTheReadyMessageIsWoken(t *testing.T) {
	p, r := behindTheReadyMessage(t)
	own := p.end.post(abi.SendWQE{Opcode: abi.OpRead}, 8)
	if _, err := p.c.Issue(p.now, &own.Request); err != transport.ErrWindow {
		t.Fatal(err)
	}
	p.message(wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: r.SinkSTag, TO: r.SinkTO}, nil)
	if p.end.woken == 0 {
		t.Error("the READ waits for ever")
	}
}

// TestAnUnreadableSendBehindTheReadyMessageEnds: with the READ before it answered, it fails.
func TestAnUnreadableSendBehindTheReadyMessageEnds(t *testing.T) {
	p, r := behindTheReadyMessage(t)
	own := p.end.post(abi.SendWQE{Opcode: abi.OpSend}, 8)
	own.gone = true
	p.end.issue(p.now)
	p.segments()
	p.message(wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: r.SinkSTag, TO: r.SinkTO}, nil)
	p.run()
	if !own.over {
		t.Error("the SEND never completes")
	}
}
