package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// modes are the rows of RDMA over Falcon §6.4 for reliable connections.
var modes = []struct {
	name     string
	ordering abi.Ordering
	ordered  bool // the Falcon connection
}{
	{"strong", abi.OrderingStrong, true}, {"weak", abi.OrderingWeak, false}, {"unordered", abi.OrderingUnordered, false},
}

// TestUnorderedMessagesFitTheLargestPathMTU: where packets carry more than drivers know, a message that
// must be one packet has up to 4096 bytes, as a driver expects that knows no larger path MTU.
func TestUnorderedMessagesFitTheLargestPathMTU(t *testing.T) {
	for n, want := range map[int]abi.WCStatus{4096: abi.WCSuccess, 4097: abi.WCLocLenErr, 8192: abi.WCLocLenErr} {
		p := newPair(t, false, 1<<16, worldConfig{mtu: 8192}, qpConfig{ordering: abi.OrderingUnordered, cie: true})
		p.b.receive(1, p.mb.sge(0, 60000))
		p.a.post(p.remote(abi.OpSend, 0), p.ma.sge(0, n))
		if got := p.a.send.wait(1)[0].Status; got != want {
			t.Errorf("SEND of %d bytes: %v, want %v", n, got, want)
		}
	}
}

// TestSizeLimitsOfUnorderedMode holds the size limits of §6.4, and which combinations of modes
// there are.
func TestSizeLimitsOfUnorderedMode(t *testing.T) {
	for _, m := range modes {
		for _, c := range []struct {
			op    abi.Opcode
			n     int
			limit bool // one packet in unordered mode
		}{
			{abi.OpSend, pathMTU, false},
			{abi.OpSend, pathMTU + 1, true},
			{abi.OpSendImm, pathMTU + 1, true},
			{abi.OpSendInv, pathMTU + 1, true},
			{abi.OpWriteImm, pathMTU, false},
			{abi.OpWriteImm, pathMTU + 1, true},
			{abi.OpWrite, 50000, false},
			{abi.OpRead, 50000, false},
		} {
			p := newPair(t, m.ordered, 1<<16, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
			p.b.receive(1, p.mb.sge(0, 60000))
			x := p.remote(c.op, 0)
			if c.op == abi.OpSendInv {
				x.Imm = p.hosts[1].register(p.pd[1], 4096, allAccess).key
			}
			want := abi.WCSuccess
			if c.limit && m.ordering == abi.OrderingUnordered {
				want = abi.WCLocLenErr
			}
			p.a.post(x, p.ma.sge(0, c.n))
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8)) // the QP goes on
			got := p.a.send.wait(2)
			if got[0].Status != want || got[1].Status != abi.WCSuccess {
				t.Errorf("%s: %v of %d bytes: %s, want %v", m.name, c.op, c.n, describe(got), want)
			}
		}
	}
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	p := h.createQP(pd, qpConfig{})
	_, root, levels := h.queueMem(2)
	for _, c := range []struct {
		typ      abi.QPType
		ordering abi.Ordering
		errors   abi.ErrorMode
		want     abi.Status
	}{
		{abi.QPTypeRC, abi.OrderingUnordered, abi.ErrorModeVerbs, abi.StatusInvalidArgument},
		{abi.QPTypeRC, abi.OrderingUnordered, abi.ErrorModeCompleteInError, abi.StatusOK},
		{abi.QPTypeRC, abi.OrderingWeak, abi.ErrorModeVerbs, abi.StatusOK},
		{abi.QPTypeRC, 3, 0, abi.StatusInvalidArgument},
		{abi.QPTypeRC, 0, 2, abi.StatusInvalidArgument},
		{abi.QPTypeUD, abi.OrderingWeak, 0, abi.StatusOK},
		{abi.QPTypeUD, abi.OrderingUnordered, abi.ErrorModeVerbs, abi.StatusInvalidArgument},
		{abi.QPTypeUD, abi.OrderingUnordered, abi.ErrorModeCompleteInError, abi.StatusOK},
	} {
		_, st := h.fn.CreateQP(&abi.CreateQP{
			PDN: pd, SendCQ: p.send.number, RecvCQ: p.recv.number, Type: c.typ, Ordering: c.ordering, ErrorMode: c.errors,
			SQLog2Entries: 2, RQLog2Entries: 2, SQLog2Stride: 9, RQLog2Stride: 9, SQPages: root, RQPages: root, SQLevels: levels, RQLevels: levels,
		})
		if st != c.want {
			t.Errorf("%v, %v, %v: %v, want %v", c.typ, c.ordering, c.errors, st, c.want)
		}
	}
}

// TestOnlyUnorderedModeCompletesOutOfOrder (DEV-951): a WRITE behind a SEND that finds no receive
// completes before it only in unordered mode. The same holds for receives whose messages overtake
// others.
func TestOnlyUnorderedModeCompletesOutOfOrder(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			p := newPair(t, m.ordered, 1<<16, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
			x := abi.SendWQE{WRID: 1, Opcode: abi.OpSend, Flags: abi.SendSignaled}
			p.a.post(x, p.ma.sge(0, 100))
			y := p.remote(abi.OpWrite, 0)
			y.WRID, y.Flags = 2, 0 // unordered mode signals by itself
			p.a.post(y, p.ma.sge(0, 20000))
			p.settle(20e6)
			c, any := p.a.send.poll()
			if any != (m.ordering == abi.OrderingUnordered) || any && c.WRID != 2 {
				t.Fatalf("completion %t %+v while the SEND waits", any, c)
			}
			p.b.receive(7, p.mb.sge(0, 100))
			c = p.a.send.wait(1)[0]
			if c.WRID != 1 || c.Status != abi.WCSuccess {
				t.Fatalf("completion %+v", c)
			}
		})
	}
	// Arrival order: over a link that reorders, receives complete in the order of the requests but
	// in unordered mode.
	for _, m := range modes {
		overtaken := false
		for seed := range uint64(10) {
			p := newPair(t, m.ordered, 1<<16, worldConfig{seed: seed, net: sim.Impairment{Delay: 20e3, Jitter: 60e3, Loss: 0.05}}, qpConfig{ordering: m.ordering, cie: true})
			const n = 40
			for i := range n {
				p.b.receive(uint64(i), p.mb.sge(i*1000, 1000))
			}
			for i := range n {
				p.a.post(abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSendImm, Imm: uint32(i), Flags: abi.SendSignaled}, p.ma.sge(0, 100+i))
			}
			seen := map[uint32]bool{}
			for i, c := range p.b.recv.wait(n) {
				// RMSN names the receive, whatever the order: message i is in receive i (§8.3.2).
				if c.Status != abi.WCSuccess || c.WRID != uint64(c.Imm) || seen[c.Imm] || c.ByteLen != 100+c.Imm {
					t.Fatalf("%s, seed %d: %+v", m.name, seed, c)
				}
				seen[c.Imm] = true
				overtaken = overtaken || int(c.Imm) != i
			}
			success(t, p.a.send.wait(n))
		}
		if overtaken != (m.ordering == abi.OrderingUnordered) {
			t.Errorf("%s: messages overtook others: %t", m.name, overtaken)
		}
	}
}

// TestAFailedRequestFailsAlone tests DEV-952 in every ordering. A failed request fails alone: both
// queue pairs continue, a receive that it took completes in error, and the requests around it
// succeed.
func TestAFailedRequestFailsAlone(t *testing.T) {
	for _, c := range []struct {
		name  string
		post  func(p *pair)
		want  abi.WCStatus
		recv  abi.WCStatus // of B's receive
		long  bool         // not in unordered mode
		taken bool         // a receive
	}{
		{name: "WRITE with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.RKey ^= 1
			p.a.post(x, p.ma.sge(0, 5000))
		}, want: abi.WCRemAccessErr},
		{name: "second packet of a WRITE beyond the region", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 8192-pathMTU-8), p.ma.sge(0, 3000))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE with immediate, wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpWriteImm, 0)
			x.RKey ^= 1
			p.a.post(x, p.ma.sge(0, 500))
		}, want: abi.WCRemAccessErr, recv: abi.WCLocAccessErr, taken: true},
		{name: "long WRITE with immediate, beyond the region in its middle", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWriteImm, 8192-pathMTU-8), p.ma.sge(0, 3000))
		}, want: abi.WCRemAccessErr, recv: abi.WCLocAccessErr, taken: true, long: true},
		{name: "READ with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpRead, 0)
			x.RKey ^= 1
			p.a.post(x, p.ma.sge(0, 5000))
		}, want: abi.WCRemAccessErr},
		{name: "atomic at an odd address", post: func(p *pair) { p.a.post(p.remote(abi.OpFetchAdd, 4), p.ma.sge(0, 8)) }, want: abi.WCRemInvReqErr},
		{
			name: "SEND longer than the receive", post: func(p *pair) { p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 1000)) },
			want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr, taken: true,
		},
		{
			name: "long SEND longer than the receive", post: func(p *pair) { p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 5000)) },
			want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr, taken: true, long: true,
		},
		{
			name: "SEND with invalidate of an unknown key", post: func(p *pair) { p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Imm: 77}, p.ma.sge(0, 100)) },
			want: abi.WCRemAccessErr, recv: abi.WCLocAccessErr, taken: true,
		},
		{name: "wrong lkey", post: func(p *pair) {
			s := p.ma.sge(0, 100)
			s.LKey ^= 1
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, s)
		}, want: abi.WCLocProtErr},
		{name: "unknown opcode", post: func(p *pair) { p.a.post(p.remote(abi.Opcode(12), 0), p.ma.sge(0, 8)) }, want: abi.WCLocQPOpErr},
		{name: "key that cannot be made invalid", post: func(p *pair) { p.a.postInvalidate(77) }, want: abi.WCMWBindErr},
		{name: "data of a SEND gone before it is sent", post: func(p *pair) { vanish(p, abi.OpSend, 300) }, want: abi.WCLocProtErr, recv: abi.WCRemAbortErr, taken: true},
		{name: "data of a long WRITE gone in its middle", post: func(p *pair) { vanish(p, abi.OpWrite, 6000) }, want: abi.WCLocProtErr},
		{name: "data of a long SEND gone in its middle", post: func(p *pair) { vanish(p, abi.OpSend, 6000) }, want: abi.WCLocProtErr, recv: abi.WCRemAbortErr, taken: true, long: true},
	} {
		for _, m := range modes {
			if c.long && m.ordering == abi.OrderingUnordered {
				continue
			}
			t.Run(m.name+"/"+c.name, func(t *testing.T) {
				p := newPair(t, m.ordered, 8192, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
				fill(p.ma.bytes(), 6)
				target := p.hosts[1].register(p.pd[1], 8192, allAccess)
				good := func(id uint64) {
					p.a.post(abi.SendWQE{WRID: id, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: target.addr, RKey: target.key}, p.ma.sge(0, 3000))
				}
				n := 500
				if c.recv == abi.WCRemAbortErr {
					n = 8000
				}
				if c.taken {
					p.b.receive(5, p.mb.sge(0, n))
				}
				good(1)
				c.post(p)
				good(3)
				got := p.a.send.wait(3)
				for _, x := range got {
					want := abi.WCSuccess
					if x.WRID == 0 {
						want = c.want
					}
					if x.Status != want {
						t.Fatalf("completions %s, want %v", describe(got), c.want)
					}
				}
				if m.ordering != abi.OrderingUnordered && (got[0].WRID != 1 || got[2].WRID != 3) {
					t.Fatalf("completions %s", describe(got))
				}
				if c.taken {
					if r := p.b.recv.wait(1)[0]; r.WRID != 5 || r.Status != c.recv {
						t.Fatalf("receive %+v, want %v", r, c.recv)
					}
				}
				// Receives keep their order behind it.
				p.b.receive(6, p.mb.sge(0, 500))
				p.a.post(abi.SendWQE{WRID: 4, Opcode: abi.OpSend, Flags: abi.SendSignaled}, target0(p).sge(0, 200))
				p.a.post(abi.SendWQE{WRID: 5, Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: target.addr, RKey: target.key}, target0(p).sge(0, 3000))
				success(t, p.a.send.wait(2))
				if r := p.b.recv.wait(1)[0]; r.WRID != 6 || r.Status != abi.WCSuccess || r.ByteLen != 200 {
					t.Fatalf("receive behind it %+v", r)
				}
				p.settle(1e9)
				for i, q := range []*qp{p.a, p.b} {
					if q.q.State() != abi.QPStateRTS || len(p.hosts[i].async) != 0 {
						t.Fatalf("host %d: QP in %v, events %+v", i, q.q.State(), p.hosts[i].async)
					}
					if u := p.hosts[i].credits.InUse(); u != (credit.Cost{}) {
						t.Fatalf("host %d: credits in use %v", i, u)
					}
				}
			})
		}
	}
}

// TestErrorModesDoNotMix: a queue pair that fails as verbs require never accepts as data what a
// peer that completes in error could not supply. Connection management does not connect such queue
// pairs (DEV-950).
func TestErrorModesDoNotMix(t *testing.T) {
	for _, op := range []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpWriteImm} {
		for _, n := range []int{300, 6000} {
			for _, m := range modes[:2] {
				p := newPair(t, m.ordered, 8192, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
				a := p.hosts[0].createQP(p.pd[0], qpConfig{ordering: m.ordering, cie: true})
				b := p.hosts[1].createQP(p.pd[1], qpConfig{ordering: m.ordering})
				p.connect(a, b, m.ordered)
				p.a, p.b = a, b
				if op != abi.OpWrite {
					b.receive(5, p.mb.sge(0, 8000))
				}
				vanish(p, op, n)
				if got := a.send.wait(1)[0]; got.Status == abi.WCSuccess {
					t.Fatalf("%s: %v of %d bytes: %+v", m.name, op, n, got)
				}
				p.settle(1e9)
				if r, any := b.recv.poll(); any && r.Status == abi.WCSuccess || any == (op == abi.OpWrite) {
					t.Errorf("%s: %v of %d bytes: receive %t %+v", m.name, op, n, any, r)
				}
				if b.q.State() != abi.QPStateErr {
					t.Errorf("%s: %v of %d bytes: target in %v", m.name, op, n, b.q.State())
				}
			}
		}
	}
}

// TestABadReceiveFailsAWriteWithImmediate: a receive whose SGE names no memory fails, and with it
// the WRITE that takes it for its immediate data, as a SEND does. (DEV-610, DEV-952)
func TestABadReceiveFailsAWriteWithImmediate(t *testing.T) {
	for _, cie := range []bool{false, true} {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpWriteImm} {
			for _, m := range modes[:2] {
				p := newPair(t, m.ordered, 8192, worldConfig{}, qpConfig{ordering: m.ordering, cie: cie})
				bad := p.mb.sge(0, 8192)
				bad.LKey ^= 1
				p.b.receive(5, bad)
				p.b.receive(6, p.mb.sge(0, 8192))
				for range 2 {
					p.a.post(p.remote(op, 0), p.ma.sge(0, 3000))
				}
				sent, got := p.a.send.wait(2), p.b.recv.wait(2)
				want := [2]abi.WCStatus{abi.WCWRFlushErr, abi.WCWRFlushErr}
				state := abi.QPStateErr
				if cie {
					want, state = [2]abi.WCStatus{}, abi.QPStateRTS
				}
				if sent[0].Status != abi.WCRemOpErr || sent[1].Status != want[0] || got[0].WRID != 5 || got[0].Status != abi.WCLocProtErr || got[1].Status != want[1] ||
					p.a.q.State() != state || p.b.q.State() != state {
					t.Errorf("complete in error %t, %s, %v: sends %s, receives %s, QPs in %v and %v", cie, m.name, op, describe(sent), describe(got), p.a.q.State(), p.b.q.State())
				}
			}
		}
	}
}

// target0 is memory of host 0 that is always good.
func target0(p *pair) *region { return p.hosts[0].register(p.pd[0], 4096, allAccess) }

// vanish posts a request whose data goes away before or while it is sent.
func vanish(p *pair, op abi.Opcode, n int) {
	m := p.hosts[0].register(p.pd[0], 8192, allAccess)
	x := p.remote(op, 0)
	x.WRID = 0
	p.cut(0, true)
	p.a.post(x, m.sge(0, n))
	p.step() // the first packets are sent, and lost
	ok(p.t, p.hosts[0].fn.DeregMR(m.key))
	p.cut(0, false)
}

// TestOrderingsOfRFC7306 is the table of RFC 7306 §7 with the operations this device has: Immediate
// Data is a SEND with immediate data that carries nothing else, over iWARP a WRITE of nothing. Each row
// is tried many times over a link that loses and reorders. The rows that end in a READ hold in strong mode only, because RDMA
// over Falcon §6.7 lets READs of weak mode run as they come. Strong mode also places data in order,
// where the table has "no placement guarantee".
func TestOrderingsOfRFC7306(t *testing.T) {
	const (
		write  = abi.OpWrite
		send   = abi.OpSend
		read   = abi.OpRead
		atomic = abi.OpFetchAdd
	)
	imm := abi.OpSendImm
	if over == byIWARP {
		imm = abi.OpWriteImm
	}
	for _, c := range []struct {
		first, second abi.Opcode
		strong, weak  bool   // guaranteed
		what          string // by the table
	}{
		{imm, send, true, true, "completed in order"},
		{imm, imm, true, true, "completed in order"},
		{imm, read, true, false, "immediate data completes before the READ's response"},
		{imm, atomic, true, true, "immediate data completes before the atomic's response"},
		{imm, write, true, true, "both complete"},
		{read, imm, true, true, "both complete"},
		{read, send, true, true, "both complete"},
		{send, imm, true, true, "completed in order"},
		{send, send, true, true, "completed in order"},
		{write, imm, true, true, "immediate data completes after the WRITE is placed"},
		{send, read, true, false, "READ sees the SEND"},
		{send, atomic, true, true, "atomic sees the SEND"},
		{write, atomic, true, true, "atomic sees the WRITE"},
		{write, read, true, false, "READ sees the WRITE"},
		{atomic, read, true, false, "READ sees the atomic"},
		{read, atomic, true, true, "both complete"},
		{atomic, atomic, true, true, "second sees the first"},
		{atomic, imm, true, true, "both complete"},
		{atomic, send, true, true, "both complete"},
		{atomic, write, true, false, "the WRITE is placed last"},
	} {
		for _, m := range modes[:2] {
			if !c.strong || m.ordering == abi.OrderingWeak && (!c.weak || over == byRoCE || over == byIWARP) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v then %v: %s", m.name, c.first, c.second, c.what), func(t *testing.T) {
				for seed := range uint64(6) {
					imp := sim.Impairment{Delay: 20e3, Jitter: 100e3, Loss: 0.15, Reorder: 0.2, ReorderDelay: 200e3}
					p := newPair(t, m.ordered, 4096, worldConfig{seed: seed, net: imp}, qpConfig{ordering: m.ordering})
					cell := func() uint64 { return binary.LittleEndian.Uint64(p.mb.bytes()[64:]) }
					value := uint64(0)
					for round := range 12 {
						old := value
						post := func(op abi.Opcode, id uint64) {
							x := p.remote(op, 64)
							x.WRID, x.CompareAdd, x.Imm = id, 1000, uint32(id)
							at := int(id) * 8
							b := p.ma.bytes()[at : at+8]
							switch op {
							case write, send:
								binary.LittleEndian.PutUint64(b, uint64(round+1)<<32|id)
							case read, atomic:
								binary.LittleEndian.PutUint64(b, 0)
							}
							switch op {
							case send:
								p.b.receive(id, p.mb.sge(64, 8))
							case imm:
								p.b.receive(id)
								p.a.post(x)
								return
							}
							p.a.post(x, p.ma.sge(at, 8))
							if op == read || op == atomic {
								return
							}
							value = uint64(round+1)<<32 | id
						}
						apply := func(op abi.Opcode) {
							if op == atomic {
								value += 1000
							}
						}
						post(c.first, 1)
						apply(c.first)
						middle := value
						post(c.second, 2)
						apply(c.second)
						if c.first == imm && (c.second == read || c.second == atomic) {
							// At the moment of the response, not later.
							success(t, p.a.send.wait(2))
							if r, any := p.b.recv.poll(); !any || r.Imm != 1 {
								t.Fatalf("seed %d: %v was answered before immediate data completed", seed, c.second)
							}
							if got := binary.LittleEndian.Uint64(p.ma.bytes()[2*8:]); got != middle {
								t.Fatalf("seed %d: saw %#x, want %#x", seed, got, middle)
							}
							continue
						}
						if c.second == imm && c.first == write {
							// At the moment of the completion, not later.
							if r := p.b.recv.wait(1)[0]; r.Imm != 2 || cell() != middle {
								t.Fatalf("seed %d: immediate data %+v before the WRITE was placed", seed, r)
							}
						} else if takes(c.first) || takes(c.second) {
							want := []uint64{}
							for i, op := range []abi.Opcode{c.first, c.second} {
								if takes(op) {
									want = append(want, uint64(i+1))
								}
							}
							for i, r := range p.b.recv.wait(len(want)) {
								if r.WRID != want[i] || r.Status != abi.WCSuccess {
									t.Fatalf("seed %d: receive %d: %+v", seed, i, r)
								}
							}
						}
						success(t, p.a.send.wait(2))
						for i, op := range []abi.Opcode{c.first, c.second} {
							if op != read && op != atomic || i == 0 && (op == read || m.ordering == abi.OrderingWeak) {
								continue // "no placement guarantee": what comes second may be seen
							}
							want := []uint64{old, middle}[i]
							if got := binary.LittleEndian.Uint64(p.ma.bytes()[(i+1)*8:]); got != want {
								t.Fatalf("seed %d, round %d: request %d saw %#x, want %#x", seed, round, i+1, got, want)
							}
						}
						if m.ordering == abi.OrderingWeak && c.second != atomic {
							value = cell() // nor about what is placed last
						} else if cell() != value {
							t.Fatalf("seed %d: memory is %#x, want %#x", seed, cell(), value)
						}
					}
				}
			})
		}
	}
}

func takes(op abi.Opcode) bool {
	return op == abi.OpSend || op == abi.OpSendImm || op == abi.OpWriteImm
}

// TestUnorderedWorkIsFlushedOnce fails an unordered queue pair with works that are done, in
// progress and not started. Each completes once.
func TestUnorderedWorkIsFlushedOnce(t *testing.T) {
	p := newPair(t, false, 1<<16, worldConfig{}, qpConfig{ordering: abi.OrderingUnordered, cie: true})
	for i := range 20 {
		if i%2 == 0 {
			p.a.post(abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSend}, p.ma.sge(0, 10)) // no receive
		} else {
			x := p.remote(abi.OpWrite, 0)
			x.WRID = uint64(i)
			p.a.post(x, p.ma.sge(0, 10))
		}
	}
	p.settle(5e6)
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	seen := map[uint64]bool{}
	for _, c := range p.a.send.wait(20) {
		if seen[c.WRID] || (c.Status == abi.WCSuccess) != (c.WRID%2 == 1) {
			t.Fatalf("completion %+v", c)
		}
		seen[c.WRID] = true
	}
	p.settle(1e9)
	if _, any := p.a.send.poll(); any {
		t.Fatal("one completion too many")
	}
	if !bytes.Equal(p.mb.bytes()[:10], p.ma.bytes()[:10]) {
		t.Fatal("WRITEs lost")
	}
}
