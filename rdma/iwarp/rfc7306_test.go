package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/rdmap"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// The titles of the tests here name the clause of RFC 7306 that they hold; docs/wire.md lists them.

// drawShape draws how a stream behaves.
func drawShape(t *rapid.T) iwarptest.Shape {
	mss := rapid.SampledFrom([]int{536, 1448, 8948}).Draw(t, "mss")
	return iwarptest.Shape{
		Delay: transport.Time(rapid.IntRange(0, 300).Draw(t, "delay in µs")) * 1000,
		Cut:   rapid.SampledFrom([]int{0, 1, 7, 100, 1460, 5000}).Draw(t, "cut"),
		Size:  rapid.SampledFrom([]int{mss, 3 * mss, 1 << 18}).Draw(t, "size"), // a stream has room for a segment
		MSS:   mss,
	}
}

// TestSection5_1AtomicsComputeWhatTheTextSays: FetchAdd and CmpSwap, plain and masked, with any
// operands, change the word as the text's arithmetic does and return what it was.
func TestSection5_1AtomicsComputeWhatTheTextSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t, rapid.Uint64().Draw(t, "seed"), drawShape(t))
		word := rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(0)), rapid.Just(^uint64(0)), rapid.Uint64Range(0, 3))
		value := word.Draw(t, "value")
		binary.LittleEndian.PutUint64(p.ends[1].memory[8:], value)
		ops := rapid.SampledFrom([]abi.Opcode{abi.OpFetchAdd, abi.OpCmpSwap, abi.OpMaskedFetchAdd, abi.OpMaskedCmpSwap})
		var want []uint64
		for range rapid.IntRange(1, 30).Draw(t, "atomics") {
			want = append(want, value)
			x := abi.SendWQE{Opcode: ops.Draw(t, "op"), RemoteAddr: 8, CompareAdd: word.Draw(t, "compare or add"), Swap: word.Draw(t, "swap")}
			masks := abi.AtomicMasks{SwapAdd: word.Draw(t, "mask"), Compare: word.Draw(t, "compare mask")}
			p.ends[0].post(x, 8).Masks = masks
			switch x.Opcode {
			case abi.OpFetchAdd:
				value += x.CompareAdd
			case abi.OpMaskedFetchAdd:
				value = rdmap.FetchAdd(value, x.CompareAdd, masks.SwapAdd)
			case abi.OpCmpSwap:
				value = rdmap.CmpSwap(value, x.CompareAdd, ^uint64(0), x.Swap, ^uint64(0))
			default:
				value = rdmap.CmpSwap(value, x.CompareAdd, masks.Compare, x.Swap, masks.SwapAdd)
			}
		}
		p.until(p.over)
		for i, r := range p.ends[0].requests {
			if got := binary.LittleEndian.Uint64(r.data); r.Status != abi.WCSuccess || got != want[i] {
				t.Fatalf("%v %d: %v, was %#x, want %#x", r.WQE.Opcode, i, r.Status, got, want[i])
			}
		}
		if got := binary.LittleEndian.Uint64(p.ends[1].memory[8:]); got != value {
			t.Fatalf("the word is %#x, want %#x", got, value)
		}
	})
}

// TestSection5_3AtomicsOfManyStreamsAreAtomic: streams that add to one word and swap another one at
// the same time lose no addition, and no two see the same sum.
func TestSection5_3AtomicsOfManyStreamsAreAtomic(t *testing.T) {
	for seed := range uint64(10) {
		w := iwarptest.New(t, seed)
		memory := make([]byte, 64)
		const streams, each = 5, 40
		var ends []*endpoint
		var pairs []*pair
		for range streams {
			p := &pair{Net: w, t: t, link: w.Connect(0, iwarptest.Shape{Delay: 100e3, Cut: 50}, [2]iwarp.Settings{iwarptest.Usual(), iwarptest.Usual()})}
			for i := range p.ends {
				p.ends[i] = newEndpoint(t)
				p.ends[i].attach(p.link.Conns[i])
			}
			p.ends[1].memory = memory
			pairs, ends = append(pairs, p), append(ends, p.ends[0])
			for range each {
				p.ends[0].post(abi.SendWQE{Opcode: abi.OpFetchAdd, CompareAdd: 1}, 8)
				p.ends[0].post(abi.SendWQE{Opcode: abi.OpCmpSwap, RemoteAddr: 8, Swap: uint64(len(ends))}, 8)
			}
		}
		for now, over := transport.Time(1e9), false; !over; {
			next := w.Step(now)
			over = true
			for i, e := range ends {
				if e.issue(now) {
					next = now
				}
				over = over && pairs[i].over()
			}
			if next == iwarptest.Never && !over {
				t.Fatal("stuck")
			}
			now = max(now, next)
		}
		seen, swapped := map[uint64]bool{}, 0
		for _, e := range ends {
			last := uint64(0)
			for i, r := range e.requests {
				got := binary.LittleEndian.Uint64(r.data)
				switch {
				case r.Status != abi.WCSuccess:
					t.Fatalf("seed %d: %v", seed, r.Status)
				case i%2 == 1 && got == 0:
					swapped++
				case i%2 == 0 && (seen[got] || i > 0 && got <= last):
					t.Fatalf("seed %d: the sum %d was seen twice, or behind %d", seed, got, last)
				case i%2 == 0:
					seen[got], last = true, got
				}
			}
		}
		if sum := binary.LittleEndian.Uint64(memory); sum != streams*each || swapped != 1 {
			t.Errorf("seed %d: the sum is %d, %d swaps", seed, sum, swapped)
		}
	}
}

// TestSection5_2RequestsShareTheQueueOfREADs: READ Requests and Atomic Requests have queue 1 and one
// sequence of numbers, Atomic Responses queue 3 and their own; answers come in the order of the
// requests and carry their identifiers.
func TestSection5_2RequestsShareTheQueueOfREADs(t *testing.T) {
	p := connected(t)
	binary.LittleEndian.PutUint64(p.end.memory[16:], 70)
	atomic := wire.AtomicRequest{Opcode: wire.FetchAdd, ID: 900, STag: key, TO: 16, AddSwap: 1}
	read := wire.ReadRequest{SinkSTag: 5, SinkTO: 1000, Size: 3000, SourceSTag: key}
	p.message(wire.Header{Opcode: wire.OpAtomicRequest, Last: true, MSN: 1}, atomic.Append(nil))
	p.message(wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: 2}, read.Append(nil))
	atomic.ID = 901
	p.message(wire.Header{Opcode: wire.OpAtomicRequest, Last: true, MSN: 3}, atomic.Append(nil))
	list := p.segments()
	if len(list) != 5 {
		t.Fatalf("sent %+v", list)
	}
	for i, at := range []int{0, 4} {
		r, err := wire.ParseAtomicResponse(list[at].body)
		if list[at].Opcode != wire.OpAtomicResponse || list[at].MSN != uint32(i+1) || err != nil || r.ID != uint32(900+i) || r.Original != uint64(70+i) {
			t.Errorf("answer %d: %+v, %+v", i, list[at], r)
		}
	}
	for i, s := range list[1:4] {
		if s.Opcode != wire.OpReadResponse || s.STag != 5 || s.Last != (i == 2) {
			t.Errorf("answer to the READ: %+v", s.Header)
		}
	}
}

// TestSection5_2_2AsManyRequestsAsAgreedAreServed: the responder has room for as many READs and
// atomics together as it agreed to, and not for one more.
func TestSection5_2_2AsManyRequestsAsAgreedAreServed(t *testing.T) {
	for _, more := range []int{0, 1} {
		p := connected(t)
		p.end.later = 1e6 // all have to wait
		for i := range 16 + more {
			h := wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: uint32(i + 1)}
			body := (&wire.ReadRequest{SinkSTag: 5, Size: 8, SourceSTag: key}).Append(nil)
			if i%2 == 1 {
				h.Opcode, body = wire.OpAtomicRequest, (&wire.AtomicRequest{STag: key}).Append(nil)
			}
			p.message(h, body)
		}
		if more > 0 {
			got := p.terminated()
			if h, _, err := wire.ParseHeader(got.DDP); got.Cause != wire.NoBuffer || err != nil || h.MSN != 17 {
				t.Errorf("one too many: %+v", got)
			}
			continue
		}
		if n := len(p.segments()); n != 0 {
			t.Errorf("%d answers before their time", n)
		}
		p.end.later = 0
		p.now += 1e6
		p.run()
		if n := len(p.segments()); n != 16 || p.end.ended {
			t.Errorf("%d answers, ended %q", n, p.end.why)
		}
	}
}

// TestSection5_2_1NoMoreRequestsAreSentThanAgreed: an end never has more READs and atomics unanswered
// than the other one serves, however many its queue pair has.
func TestSection5_2_1NoMoreRequestsAreSentThanAgreed(t *testing.T) {
	for _, ird := range []int{1, 2, 5} {
		w := iwarptest.New(t, uint64(ird))
		settings := [2]iwarp.Settings{iwarptest.Usual(), iwarptest.Usual()}
		settings[1].IRD = ird
		p := &pair{Net: w, t: t, link: w.Connect(0, iwarptest.Shape{Delay: 50e3, Cut: 500}, settings), now: 1e9}
		for i := range p.ends {
			p.ends[i] = newEndpoint(t)
			p.ends[i].attach(p.link.Conns[i])
		}
		open, most := 0, 0
		w.Sees = func(_ int, b []byte) {
			ulpdu, _, err := wire.ParseFPDU(b, true)
			h, _, err2 := wire.ParseHeader(ulpdu)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			switch h.Opcode {
			case wire.OpReadRequest, wire.OpAtomicRequest:
				open++
			case wire.OpReadResponse, wire.OpAtomicResponse:
				if h.Last {
					open--
				}
			}
			most = max(most, open)
		}
		for i := range 60 {
			p.ends[0].post(abi.SendWQE{Opcode: []abi.Opcode{abi.OpRead, abi.OpFetchAdd}[i%2]}, []int{3000, 8}[i%2])
		}
		p.until(p.over)
		if most != ird {
			t.Errorf("%d are unanswered at a time, the peer serves %d", most, ird)
		}
	}
}

// TestSection5_4AnAtomicIsDoneWhenItsAnswerIsThere: that TCP has the request acknowledged does not end
// it, nor does it end a READ.
func TestSection5_4AnAtomicIsDoneWhenItsAnswerIsThere(t *testing.T) {
	p := connected(t)
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true}, nil)
	for _, op := range []abi.Opcode{abi.OpFetchAdd, abi.OpRead, abi.OpWrite} {
		p.end.post(abi.SendWQE{Opcode: op}, 8)
	}
	p.end.issue(p.now)
	p.segments()
	p.c.Acknowledged(p.now, p.c.Written())
	if r := p.end.requests; r[0].over || r[1].over || !r[2].over {
		t.Fatalf("over: %t, %t, %t", r[0].over, r[1].over, r[2].over)
	}
	p.message(wire.Header{Opcode: wire.OpAtomicResponse, Last: true, MSN: 1}, (&wire.AtomicResponse{ID: 1, Original: 77}).Append(nil))
	if r := p.end.requests; !r[0].over || r[1].over || binary.LittleEndian.Uint64(r[0].data) != 77 {
		t.Fatalf("over: %t, %t, data %x", r[0].over, r[1].over, r[0].data)
	}
}

// TestSection6ImmediateDataIsDeliveredBehindItsWRITE: a WRITE with immediate data is an RDMA WRITE,
// also of no bytes, and Immediate Data of four bytes of verbs and four zeros; the receiver learns from
// both how much was written. It takes one receive, in the order of SENDs.
func TestSection6ImmediateDataIsDeliveredBehindItsWRITE(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t, rapid.Uint64().Draw(t, "seed"), drawShape(t))
		var want []received
		size := rapid.SampledFrom([]int{0, 1, 8, 1430, 5000})
		for range rapid.IntRange(1, 20).Draw(t, "messages") {
			op := rapid.SampledFrom([]abi.Opcode{abi.OpWrite, abi.OpWriteImm, abi.OpSend, abi.OpSendInv}).Draw(t, "op")
			x := abi.SendWQE{Opcode: op, Imm: rapid.Uint32().Draw(t, "immediate data"), RemoteAddr: 8}
			if op == abi.OpSendInv {
				x.Imm = key
			}
			if rapid.Bool().Draw(t, "solicited") {
				x.Flags = abi.SendSolicited
			}
			r := p.ends[0].post(x, size.Draw(t, "size"))
			for i := range r.data {
				r.data[i] = byte(i + len(want))
			}
			if op == abi.OpWrite {
				continue
			}
			m := received{op: op, n: uint64(len(r.data)), imm: x.Imm, solicited: x.Flags != 0}
			if op != abi.OpWriteImm {
				m.data = r.data
			}
			if op == abi.OpSend {
				m.imm = 0
			}
			want = append(want, m)
		}
		p.ends[1].receives = len(want)
		p.until(p.over)
		if len(p.ends[1].messages) != len(want) || p.ends[1].receives != 0 {
			t.Fatalf("%d messages, want %d", len(p.ends[1].messages), len(want))
		}
		for i, m := range p.ends[1].messages {
			if w := want[i]; m.op != w.op || m.n != w.n || m.imm != w.imm || m.solicited != w.solicited || !bytes.Equal(m.data, w.data) {
				t.Fatalf("message %d is %v of %d bytes, %#x, solicited %t; want %v of %d, %#x, %t", i, m.op, m.n, m.imm, m.solicited, w.op, w.n, w.imm, w.solicited)
			}
		}
	})
}

// TestSection6_1ImmediateDataAloneIsAWRITEOfNoBytes: a peer may send Immediate Data without a WRITE, or
// behind another message; of its eight bytes verbs have four.
func TestSection6_1ImmediateDataAloneIsAWRITEOfNoBytes(t *testing.T) {
	p := connected(t)
	p.end.receives = 4
	imm := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	p.message(wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: 1}, imm)
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true, STag: key}, make([]byte, 50))
	p.message(wire.Header{Opcode: wire.OpSend, Last: true, MSN: 2}, nil)
	p.message(wire.Header{Opcode: wire.OpImmediateSE, Last: true, MSN: 3}, imm)
	p.message(wire.Header{Opcode: wire.OpWrite, STag: key}, make([]byte, 50))
	p.message(wire.Header{Opcode: wire.OpWrite, Last: true, STag: key, TO: 50}, make([]byte, 20))
	p.message(wire.Header{Opcode: wire.OpImmediate, Last: true, MSN: 4}, imm)
	want := []received{
		{op: abi.OpWriteImm, imm: 0x04030201}, {op: abi.OpSend}, {op: abi.OpWriteImm, imm: 0x04030201, solicited: true}, {op: abi.OpWriteImm, imm: 0x04030201, n: 70},
	}
	if !slices.EqualFunc(p.end.messages, want, func(a, b received) bool {
		return a.op == b.op && a.imm == b.imm && a.n == b.n && a.solicited == b.solicited
	}) {
		t.Errorf("%+v", p.end.messages)
	}
}

// rows are the rows of the table of §7, with what the responder must have done before what. Placed,
// completed, answered: all are in the order of the requests, which is more than the table asks for
// where it says "no placement guarantee" or "may".
var rows = []struct {
	first, second abi.Opcode
	what          string
}{
	{abi.OpWriteImm, abi.OpSend, "completed in order"},
	{abi.OpWriteImm, abi.OpWrite, "both are carried out"},
	{abi.OpWriteImm, abi.OpRead, "the READ is answered behind the completion"},
	{abi.OpWriteImm, abi.OpFetchAdd, "the atomic is answered behind the completion"},
	{abi.OpWriteImm, abi.OpWriteImm, "completed in order"},
	{abi.OpSend, abi.OpWriteImm, "completed in order"},
	{abi.OpWrite, abi.OpWriteImm, "completed behind the placement"},
	{abi.OpRead, abi.OpWriteImm, "both are carried out"},
	{abi.OpFetchAdd, abi.OpWriteImm, "both are carried out"},
	{abi.OpFetchAdd, abi.OpSend, "both are carried out"},
	{abi.OpFetchAdd, abi.OpWrite, "both are carried out"},
	{abi.OpFetchAdd, abi.OpRead, "the READ is answered behind the atomic, and sees it"},
	{abi.OpFetchAdd, abi.OpFetchAdd, "the second one runs behind the first, and sees it"},
	{abi.OpSend, abi.OpFetchAdd, "the atomic is answered behind the completion"},
	{abi.OpWrite, abi.OpFetchAdd, "the atomic is answered behind the placement, and sees it"},
	{abi.OpRead, abi.OpFetchAdd, "the atomic is answered behind the READ"},
}

// TestSection7EachRowOfTheTableHolds posts both operations of each row, many times, over streams that
// are cut at random places.
func TestSection7EachRowOfTheTableHolds(t *testing.T) {
	for _, row := range rows {
		t.Run(fmt.Sprintf("%v then %v: %s", row.first, row.second, row.what), func(t *testing.T) {
			for seed := range uint64(8) {
				p := newPair(t, seed, iwarptest.Shape{Delay: 200e3, Cut: 30})
				var answers []wire.Opcode
				p.Sees = func(from int, b []byte) {
					ulpdu, _, _ := wire.ParseFPDU(b, true)
					if h, _, err := wire.ParseHeader(ulpdu); from == 1 && err == nil {
						answers = append(answers, h.Opcode)
						p.ends[1].note("answer", h.Opcode)
					}
				}
				p.ends[1].receives = 100
				value := uint64(0)
				for round := range 12 {
					p.ends[1].log, answers = nil, nil
					log := []string{}
					want := make([]uint64, 2)
					var sent [2]*request
					for i, op := range []abi.Opcode{row.first, row.second} {
						r := p.ends[0].post(abi.SendWQE{Opcode: op, RemoteAddr: 64, CompareAdd: 1000}, 8)
						sent[i] = r
						next := uint64(round+1)<<32 | uint64(i)
						switch want[i] = value; op {
						case abi.OpSend:
							binary.LittleEndian.PutUint64(r.data, next)
							log = append(log, "place SEND", "complete SEND")
						case abi.OpWrite, abi.OpWriteImm:
							binary.LittleEndian.PutUint64(r.data, next)
							value = next
							log = append(log, "place WRITE")
							if op == abi.OpWriteImm {
								log = append(log, "complete WRITE_IMM")
							}
						case abi.OpFetchAdd:
							value += 1000
							log = append(log, "atomic", "answer Atomic Response")
						case abi.OpRead:
							log = append(log, "read", "answer READ Response")
						}
					}
					p.until(p.over)
					got := fmt.Sprint(p.ends[1].log)
					for _, line := range log {
						if !bytes.Contains([]byte(got), []byte(line)) {
							t.Fatalf("seed %d: %s lacks %q", seed, got, line)
						}
					}
					// What the second one is ordered behind: all that the first one does but its answer, and
					// the answer too if it has one itself.
					second := slices.Clone(p.ends[1].log)
					for second[len(second)-1] != log[len(log)-1] {
						second = second[:len(second)-1]
					}
					for _, line := range log[:len(log)-1] {
						answered := len(line) > 6 && line[:6] == "answer"
						if !slices.Contains(second, line) && (!answered || log[len(log)-1][:6] == "answer") {
							t.Fatalf("seed %d: %q is not before %q in %v", seed, line, log[len(log)-1], p.ends[1].log)
						}
					}
					for i, r := range sent {
						if r.Status != abi.WCSuccess {
							t.Fatalf("seed %d: %v", seed, r.Status)
						}
						if !r.Pulls() || i == 0 && r.Reads() {
							continue // a READ may see what comes behind it
						}
						if got := binary.LittleEndian.Uint64(r.data); got != want[i] {
							t.Fatalf("seed %d, round %d: %v saw %#x, want %#x", seed, round, r.WQE.Opcode, got, want[i])
						}
					}
					if got := binary.LittleEndian.Uint64(p.ends[1].memory[64:]); got != value {
						t.Fatalf("seed %d: the word is %#x, want %#x", seed, got, value)
					}
				}
			}
		})
	}
}
