package rdma

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestRandomRequestsCompleteOrAreFlushed posts entries of random bytes, and half valid ones, on
// both queues of both sides. Each of them completes or is flushed, in order, and the function
// survives.
func TestRandomRequestsCompleteOrAreFlushed(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := newPair(t, seed%2 == 0, 8192, worldConfig{seed: seed}, qpConfig{})
			for round := range 20 {
				if p.a.q.State() == abi.QPStateErr {
					break
				}
				var b [512]byte
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				x := p.remote([]abi.Opcode{0, 1, 2, 3, 4, 5, 6, 9, abi.Opcode(r.Uint32())}[r.IntN(9)], r.IntN(4096))
				x.WRID = uint64(round)
				switch r.IntN(4) {
				case 0: // as it is, but for the number that is checked below
					binary.LittleEndian.PutUint64(b[:], x.WRID)
					b[9] |= abi.SendSignaled
				case 1:
					x.NumSGE, x.Flags = byte(r.Uint32()), byte(r.Uint32())|abi.SendSignaled
					x.InlineLen = r.Uint32()
					x.Marshal(b[:])
				default:
					x.NumSGE = byte(r.IntN(5))
					x.Marshal(b[:])
					for i := range int(x.NumSGE) {
						s := p.ma.sge(r.IntN(8192), r.IntN(2000))
						if r.IntN(8) == 0 {
							s.LKey = r.Uint32()
						}
						s.Marshal(b[abi.SendWQEHeader+i*abi.SGESize:])
					}
				}
				if r.IntN(2) == 0 {
					p.b.receive(uint64(round), p.mb.sge(0, r.IntN(8192)))
				}
				if err := p.a.sq.Push(b[:]); err != nil {
					t.Fatal(err)
				}
				if _, _, err := p.a.sq.Publish(); err != nil {
					t.Fatal(err)
				}
				p.a.ring()
				p.settle(r.Int64N(2e6))
			}
			posted := int(p.a.sq.Next())
			for range 50 { // whoever waits for a receive gets one
				if p.b.q.State() != abi.QPStateRTS || p.b.rq.Next() > 60 {
					break
				}
				p.b.receive(99, p.mb.sge(0, 8192))
				p.settle(2e6)
			}
			for i, c := range p.a.send.wait(posted) {
				if c.WRID != uint64(i) {
					t.Fatalf("completion %d is of %d", i, c.WRID)
				}
			}
		})
	}
}

// TestAChangingRequestIsDecidedOnce lets the driver keep rewriting the ring. The meaning of a
// request is decided once. (DEV-606)
func TestAChangingRequestIsDecidedOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	for i := range 200 {
		if p.a.q.State() != abi.QPStateRTS {
			break
		}
		x := p.remote(abi.OpWrite, 0)
		x.WRID = uint64(i)
		p.a.post(x, p.ma.sge(0, 5000))
		for range 5 {
			p.hosts[0].e.Run(p.now)
			b := p.a.sqMem[abi.QueueHeaderSize:]
			for range 64 {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
			p.settle(3000)
		}
	}
	p.settle(1e9)
}

// TestNoDoorbellStopsAFunction: no doorbell stops a function, whatever it names, and one that names
// no queue has no effect. An error in one queue affects only that queue
// (TestABrokenQueueFailsOnlyItsQueuePair). (DEV-801)
func TestNoDoorbellStopsAFunction(t *testing.T) {
	for _, c := range []struct {
		name string
		ring func(p *pair)
		bad  uint64
	}{
		{"unknown QP", func(p *pair) { p.bell(abi.DoorbellSQ, p.a.number+1, 0) }, 1},
		{"unknown QP, RQ", func(p *pair) { p.bell(abi.DoorbellRQ, 0, 0) }, 1},
		{"unknown SRQ", func(p *pair) { p.bell(abi.DoorbellSRQ, 5, 0) }, 1},
		{"unknown CQ", func(p *pair) { p.bell(abi.DoorbellCQArm, 0x00ffffff, 0) }, 1},
		{"admin", func(p *pair) { p.bell(abi.DoorbellAdmin, 0, 0) }, 1},
		{"unknown kind", func(p *pair) { p.bell(77, 0, 0) }, 1},
		{"many", func(p *pair) {
			for i := range uint32(5000) {
				p.bell(abi.DoorbellSQ, 0x100000+i, i)
			}
		}, 5000},
		{"CQ armed in the future", func(p *pair) {
			p.bell(abi.DoorbellCQArm, p.a.send.number, 1)
			if n := len(p.hosts[0].cqEvents); n != 1 {
				p.t.Errorf("%d events, want one at once (DEV-708)", n)
			}
		}, 0},
		{"CQ armed far behind", func(p *pair) {
			p.bell(abi.DoorbellCQArm, p.a.send.number, ^uint32(0)-100_000)
			if n := len(p.hosts[0].cqEvents); n != 1 {
				p.t.Errorf("%d events, want one at once (DEV-708)", n)
			}
		}, 0},
		{"old doorbell", func(p *pair) { p.bell(abi.DoorbellSQ, p.a.number, 0xffffffff) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
			c.ring(p)
			h := p.hosts[0]
			if n := h.fn.Stats().BadDoorbells; n != c.bad {
				t.Errorf("%d doorbells counted, want %d", n, c.bad)
			}
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.mb.addr, RKey: p.mb.key}, p.ma.sge(0, 100))
			success(t, p.a.send.wait(1))
		})
	}
}

// TestABrokenQueueFailsOnlyItsQueuePair: an impossible index in the memory of one queue, which a
// program of the guest may own, or a doorbell ahead of it, fails its queue pair. Other queue pairs
// of the function continue, and a reset repairs the failed one. (DEV-605, DEV-612)
func TestABrokenQueueFailsOnlyItsQueuePair(t *testing.T) {
	for name, spoil := range map[string]func(p *pair){
		"ahead of memory":     func(p *pair) { p.bell(abi.DoorbellSQ, p.a.number, 1) },
		"ahead of memory, RQ": func(p *pair) { p.bell(abi.DoorbellRQ, p.a.number, 1) },
		"overfull": func(p *pair) {
			binary.LittleEndian.PutUint32(p.a.sqMem, 65)
			p.bell(abi.DoorbellSQ, p.a.number, 65)
		},
		"RQ far ahead": func(p *pair) {
			binary.LittleEndian.PutUint32(p.a.rqMem, 1<<31)
			p.bell(abi.DoorbellRQ, p.a.number, 1)
		},
		"producer moved back": func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
			p.a.send.wait(1)
			binary.LittleEndian.PutUint32(p.a.sqMem, 0)
			p.bell(abi.DoorbellSQ, p.a.number, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
			h := p.hosts[0]
			beside := h.createQP(p.pd[0], qpConfig{})
			spoil(p)
			if p.a.q.State() != abi.QPStateErr || len(h.violations) == 0 {
				t.Fatalf("QP in %v, %d violations", p.a.q.State(), len(h.violations))
			}
			fatal := 0
			for _, e := range h.async {
				if e.typ == abi.EventQPFatal && e.number == p.a.number && e.status == uint32(abi.WCLocQPOpErr) {
					fatal++
				}
			}
			if fatal != 1 {
				t.Fatalf("events %+v", h.async)
			}
			spoil2 := len(h.async)
			p.bell(abi.DoorbellSQ, p.a.number, 5) // of a queue that is broken already
			if len(h.async) != spoil2 || beside.q.State() != abi.QPStateReset && beside.q.State() != abi.QPStateInit {
				t.Fatalf("events %+v, QP beside in %v", h.async[spoil2:], beside.q.State())
			}
			if _, st := h.fn.AllocPD(); st != abi.StatusOK {
				t.Fatal(st)
			}
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset})
			clear(p.a.sqMem)
			clear(p.a.rqMem)
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateInit})
			p.bell(abi.DoorbellSQ, p.a.number, 0)
			if p.a.q.State() != abi.QPStateInit {
				t.Fatalf("after a reset the QP is in %v", p.a.q.State())
			}
		})
	}
}

func (p *pair) bell(kind abi.DoorbellKind, queue, index uint32) {
	p.hosts[0].fn.Doorbell(p.now, &abi.Doorbell{Kind: kind, Queue: queue, Index: index})
}

// TestMissingMemoryFailsAQueuePairOrARequest removes the guest's memory. A missing ring fails its
// queue pair, missing data only the request.
func TestMissingMemoryFailsAQueuePairOrARequest(t *testing.T) {
	t.Run("rings", func(t *testing.T) {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		p.hosts[0].mem.SetRegions(nil)
		p.settle(1e9)
		if p.a.q.State() != abi.QPStateErr {
			t.Fatalf("QP in %v", p.a.q.State())
		}
	})
	keep := func(p *pair, i int, m *region) {
		// Everything but the region's pages.
		h := p.hosts[i]
		at := m.addr - arenaBase
		h.mem.SetRegions([]queues.Region{
			{Addr: arenaBase, Mem: h.arena[:at]}, {Addr: m.addr + uint64(m.n), Mem: h.arena[at+uint64(m.n):]},
		})
	}
	for _, c := range []struct {
		name string
		op   abi.Opcode
		host int
		want abi.WCStatus
	}{
		{"local data of a WRITE", abi.OpWrite, 0, abi.WCLocProtErr},
		{"local data of a READ", abi.OpRead, 0, abi.WCLocProtErr},
		{"remote data of a WRITE", abi.OpWrite, 1, abi.WCRemOpErr},
		{"remote data of a READ", abi.OpRead, 1, abi.WCRemOpErr},
		{"remote cell of an atomic", abi.OpFetchAdd, 1, abi.WCRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
			keep(p, c.host, []*region{p.ma, p.mb}[c.host])
			p.a.post(p.remote(c.op, 0), p.ma.sge(0, 8))
			if got := p.a.send.wait(1)[0].Status; got != c.want {
				t.Fatalf("%v, want %v", got, c.want)
			}
		})
	}
}

// rawULP sends what the test gives it, as a peer with a broken or malicious RDMA engine would.
type rawULP struct{ send []byte }

func (u *rawULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	return copy(dst, u.send), nil
}

func (u *rawULP) HandleEvent(falcon.Time, *falcon.Event) {}

// attack opens a connection to own's QP from host 0, whose ULP is the test's.
func (w *world) attack(own *qp, ordered bool) *falcon.Conn {
	w.t.Helper()
	open := func(fe *falcon.Engine, local, remote falcon.CID, lf, rf uint32) *falcon.Conn {
		c, err := fe.Open(w.now, falcon.ConnConfig{
			LocalCID: local, RemoteCID: remote, LocalFunction: lf, RemoteFunction: rf, Protocol: falconwire.ProtocolRDMA, Ordered: ordered, MTU: 2048,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		return c
	}
	c := open(w.hosts[0].fe, 1, 2, 1, 2)
	ok(w.t, own.q.Connect(w.now, own.h.rof().Over(open(own.h.fe, 2, 1, 2, 1)), 9, pathMTU, [16]byte{}))
	return c
}

// attacked is a function whose peer is the test: it sends what it likes over a valid connection.
type attacked struct {
	*world
	raw   *rawULP
	h     *host
	r     *rand.Rand
	seed  uint64
	pd    uint32
	m     *region // that the peer may use
	guard uint64  // a page behind it that nobody may
	conn  *falcon.Conn
}

func newAttacked(t *testing.T, seed uint64) *attacked {
	t.Helper()
	raw := &rawULP{}
	v := &attacked{world: newWorld(t, worldConfig{seed: seed, peer: raw}), raw: raw, r: rand.New(rand.NewPCG(seed, 3)), seed: seed}
	v.h = v.hosts[1]
	v.pd, _ = v.h.fn.AllocPD()
	v.m = v.h.register(v.pd, 8192, bindable)
	v.guard = v.h.alloc(4096)
	return v
}

// send sends a packet, as a push or as a pull, and lets it take effect. It reports false when the
// connection has ended.
func (v *attacked) send(tag uint64, push bool, packet []byte) bool {
	v.raw.send = packet
	var err error
	if push {
		err = v.conn.Push(v.now, tag, len(packet))
	} else {
		err = v.conn.Pull(v.now, tag, len(packet), v.r.IntN(2048))
	}
	if err == nil {
		v.settle(1e6)
	}
	return err == nil
}

// survived ends the attack and checks that the function works, that nothing outside the region was
// written, and that nothing is leaked.
func (v *attacked) survived() {
	v.t.Helper()
	v.settle(1e9)
	for i, b := range v.h.bytes(v.guard, 4096) {
		if b != 0 {
			v.t.Fatalf("seed %d: byte %d outside the region written", v.seed, i)
		}
	}
	v.h.fn.Close(v.now)
	v.conn.Close(v.now)
	v.settle(1e9)
	if u := v.h.credits.InUse(); u != (credit.Cost{}) {
		v.t.Fatalf("seed %d: credits in use %v", v.seed, u)
	}
	if n := v.h.fn.Counts(); n != (verbs.Counts{}) {
		v.t.Fatalf("seed %d: left %+v", v.seed, n)
	}
}

// TestAHostilePeerEndsOnlyItsConnection feeds pushes and pulls that no correct engine sends to a QP
// in RTS: wrong numbers, lengths, ends and bits.
func TestAHostilePeerEndsOnlyItsConnection(t *testing.T) {
	for seed := range uint64(150) {
		v := newAttacked(t, seed)
		r, m := v.r, v.m
		b := v.h.createQP(v.pd, qpConfig{})
		for i := range 8 {
			b.receive(uint64(i), m.sge(0, 4096))
		}
		v.conn = v.attack(b, seed%2 == 0)
		for sn := uint32(1); sn < 13; sn++ {
			x := wire.Headers{
				RBTH: wire.RBTH{Opcode: ib.Opcode(r.IntN(0x18)), DestQP: b.number, SN: sn, CE: r.IntN(9) == 0, Pad: uint8(r.IntN(4) * r.IntN(2))},
				Extended: ib.Extended{
					RETH:   ib.RETH{VA: m.addr + uint64(r.IntN(9000)), RKey: m.key, Length: uint32(r.IntN(2000))},
					SETH:   ib.SETH{RMSN: uint32(r.IntN(4))},
					OETH:   ib.OETH{Offset: uint32(r.IntN(3)) * pathMTU},
					Atomic: ib.AtomicETH{VA: m.addr + uint64(r.IntN(9000)), RKey: m.key},
					Inv:    ib.IETH{RKey: m.key * uint32(r.IntN(2))},
				},
			}
			data, cut := r.IntN(300)*4, r.IntN(40)*r.IntN(2)*r.IntN(2)
			if r.IntN(4) == 0 {
				x.RETH.Length = uint32(data)
			}
			if r.IntN(8) == 0 {
				x.RBTH.SN += uint32(r.IntN(3000)) - 1500
			}
			if r.IntN(12) == 0 {
				x.RBTH.DestQP++
			}
			packet := append(x.Append(nil), make([]byte, data)...)
			packet = packet[:max(len(packet)-cut, 0)]
			if r.IntN(10) == 0 {
				packet[0] ^= byte(r.Uint32())
			}
			if !v.send(uint64(sn), r.IntN(2) == 0, packet) {
				break
			}
		}
		v.survived()
	}
}

// TestEveryKindOfTargetSurvivesAHostilePeer sends to a target of each special kind what no correct
// engine sends: XRC opcodes, masked atomics, CE bits, other queue pairs' window keys.
func TestEveryKindOfTargetSurvivesAHostilePeer(t *testing.T) {
	for seed := range uint64(60) {
		v := newAttacked(t, seed)
		r, m, h := v.r, v.m, v.h
		xrcd, _ := h.fn.OpenXRCD()
		s := h.createSRQ(abi.CreateSRQ{PDN: v.pd, Type: abi.SRQTypeXRC, XRCDN: xrcd, CQN: h.createCQ(6).number})
		basic := h.createSRQ(abi.CreateSRQ{PDN: v.pd})
		for i := range 10 {
			s.receive(uint64(i), m.sge(0, 4096))
			basic.receive(uint64(i), m.sge(0, 4096))
		}
		window := h.window(v.pd)
		c := []qpConfig{
			{typ: abi.QPTypeXRCRecv, xrcd: xrcd}, {srq: basic}, {ordering: abi.OrderingUnordered, cie: true}, {ordering: abi.OrderingWeak, cie: true}, {cie: true},
		}[seed%5]
		b := h.createQP(v.pd, c)
		if b.rq != nil && c.srq == nil && c.typ == 0 {
			for i := range 10 {
				b.receive(uint64(i), m.sge(0, 4096))
			}
		}
		v.conn = v.attack(b, c.ordering == abi.OrderingStrong && seed%2 == 0)
		for sn := uint32(1); sn < 14; sn++ {
			keys := []uint32{m.key, window, m.key + 1}
			x := wire.Headers{
				RBTH: wire.RBTH{Opcode: ib.Opcode(r.IntN(0x1a)), DestQP: b.number, SN: sn, CE: r.IntN(4) == 0},
				Extended: ib.Extended{
					XRC:    ib.XRCETH{SRQ: []uint32{s.number, basic.number, r.Uint32()}[r.IntN(3)]},
					RETH:   ib.RETH{VA: m.addr + uint64(r.IntN(9000)), RKey: keys[r.IntN(3)], Length: uint32(r.IntN(300) * 4)},
					SETH:   ib.SETH{RMSN: uint32(r.IntN(5))},
					OETH:   ib.OETH{Offset: uint32(r.IntN(3)) * pathMTU},
					Atomic: ib.AtomicETH{VA: m.addr + uint64(r.IntN(1100)*8), RKey: keys[r.IntN(3)]},
					Mask:   ib.AtomicMaskETH{SwapAdd: r.Uint64(), Compare: r.Uint64()},
					Inv:    ib.IETH{RKey: keys[r.IntN(3)]},
				},
			}
			if r.IntN(2) == 0 {
				x.RBTH.Opcode |= ib.XRC
			}
			n := r.IntN(300) * 4
			if r.IntN(2) == 0 {
				n = int(x.RETH.Length)
			}
			if !v.send(uint64(sn), r.IntN(3) > 0, append(x.Append(nil), make([]byte, n)...)) {
				break
			}
		}
		v.survived()
	}
}

// TestReservedBytesAreReportedByStrictFunctions: nonzero reserved bytes of an entry have no effect,
// but a strict function reports them to the driver. (DRV-102)
func TestReservedBytesAreReportedByStrictFunctions(t *testing.T) {
	const ofSend, ofReceive = 11, 9 // bytes of the entries that have to be zero
	for _, strict := range []bool{false, true} {
		for _, dirty := range []bool{false, true} {
			p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
			p.hosts[0].fn.UseStrict(strict)
			p.hosts[1].fn.UseStrict(strict)
			p.b.receive(1, p.mb.sge(0, 100))
			p.a.postRaw(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, nil, p.ma.sge(0, 10))
			if dirty {
				p.a.sqMem[abi.QueueHeaderSize+ofSend] = 1
				p.b.rqMem[abi.QueueHeaderSize+ofReceive] = 1
			}
			p.a.ring()
			success(t, p.a.send.wait(1))
			success(t, p.b.recv.wait(1))
			for i, where := range []abi.Ring{abi.RingSQ, abi.RingRQ} {
				v := p.hosts[i].violations
				if told := len(v) == 1 && v[0].Clause == 102 && v[0].Ring == where; told != (strict && dirty) || !told && len(v) > 0 {
					t.Errorf("strict %t, reserved bytes used %t: host %d reports %+v", strict, dirty, i, v)
				}
			}
		}
	}
}

// TestARequestForAnotherQueuePairIsRefused sends to a QP number that does not own the connection
// (RDMA over Falcon §6.9). The request is refused, and the QP that owns the connection continues.
func TestARequestForAnotherQueuePairIsRefused(t *testing.T) {
	for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead, abi.OpFetchAdd} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		other := p.hosts[1].createQP(p.pd[1], qpConfig{})
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
		p.connectAs(a, b, true, other.number, a.number)
		a.post(p.remote(op, 0), p.ma.sge(0, 8))
		if got := a.send.wait(1)[0].Status; got != abi.WCRemInvReqErr {
			t.Fatalf("%v: %v", op, got)
		}
		if b.q.State() != abi.QPStateRTS || other.q.State() != abi.QPStateInit {
			t.Fatalf("%v: QPs are in %v and %v", op, b.q.State(), other.q.State())
		}
		if n := p.hosts[1].fn.Stats().CIDMismatches; n != 1 {
			t.Fatalf("%v: %d mismatches counted", op, n)
		}
	}
}

// TestAnUnreliableRequestForAnotherQueuePairIsIgnored: the same on an unreliable connection, where
// neither end is told.
func TestAnUnreliableRequestForAnotherQueuePairIsIgnored(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	a, b := p.hosts[0].createQP(p.pd[0], uc), p.hosts[1].createQP(p.pd[1], uc)
	p.connectAs(a, b, true, b.number+1, a.number)
	a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	a.send.wait(1)
	p.settle(1e6)
	if n := p.hosts[1].fn.Stats().CIDMismatches; n != 1 || b.q.State() != abi.QPStateRTS {
		t.Fatalf("%d mismatches counted, QP in %v", n, b.q.State())
	}
}
