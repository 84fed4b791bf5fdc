package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

var uc = qpConfig{typ: abi.QPTypeUC}

// TestUnreliableConnectionsCarryTheirOperations sends messages of all sizes and operations that
// unreliable connections have. (DEV-960)
func TestUnreliableConnectionsCarryTheirOperations(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, uc)
		for i, n := range []int{0, 1, 1024, 1025, 5000, 1 << 19} {
			for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm, abi.OpWrite, abi.OpWriteImm} {
				clear(p.mb.bytes())
				fill(p.ma.bytes()[:n], uint64(i))
				if op != abi.OpWrite {
					p.b.receive(uint64(i), p.mb.sge(0, n))
				}
				x := p.remote(op, 0)
				x.WRID, x.Imm = uint64(1000+i), uint32(i)
				p.a.post(x, split(p.ma, 0, n, 3)...)
				s := p.a.send.wait(1)
				success(t, s)
				if op != abi.OpWrite {
					r := p.b.recv.wait(1)
					success(t, r)
					if imm := op != abi.OpSend; r[0].WRID != uint64(i) || r[0].ByteLen != uint32(n) || imm != (r[0].Flags == abi.WCFlagImm) || imm && r[0].Imm != uint32(i) {
						t.Fatalf("%v of %d bytes: receive %+v", op, n, r[0])
					}
				}
				p.settle(1e6)
				if !bytes.Equal(p.ma.bytes()[:n], p.mb.bytes()[:n]) {
					t.Fatalf("%v of %d bytes: wrong bytes", op, n)
				}
			}
		}
		if s := p.hosts[1].fn.Stats(); s.RNRTx+s.Refused != 0 {
			t.Errorf("answers of an unreliable connection: %+v", s)
		}
	})
}

// TestAnUnreliableErrorAtThePeerIsSilent: an error in a message at the peer is no error at either
// end. The receive that the message may have taken serves the next one. (DEV-961)
func TestAnUnreliableErrorAtThePeerIsSilent(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 64<<10, worldConfig{}, uc)
		send := func(x abi.SendWQE, n int) {
			t.Helper()
			x.Flags = abi.SendSignaled
			p.a.post(x, p.ma.sge(0, n))
			success(t, p.a.send.wait(1))
			p.settle(1e6)
		}
		fill(p.ma.bytes(), 3)
		send(abi.SendWQE{Opcode: abi.OpSend}, 5000) // there is no receive
		x := p.remote(abi.OpWrite, 0)
		x.RKey++
		send(x, 3000)
		send(p.remote(abi.OpWrite, p.mb.n-1000), 3000) // the last packets are outside
		p.b.receive(1, p.mb.sge(1<<15, 1500))
		send(abi.SendWQE{Opcode: abi.OpSend}, 5000) // too long, in the second packet
		x.Opcode = abi.OpWriteImm
		send(x, 8)
		if c, got := p.b.recv.poll(); got {
			t.Fatalf("receive %+v", c)
		}
		send(abi.SendWQE{Opcode: abi.OpSendImm, Imm: 9}, 1400)
		r := p.b.recv.wait(1)
		success(t, r)
		if r[0].WRID != 1 || r[0].ByteLen != 1400 || r[0].Imm != 9 || !bytes.Equal(p.mb.bytes()[1<<15:][:1400], p.ma.bytes()[:1400]) {
			t.Fatalf("receive %+v", r[0])
		}
		for i, q := range []*qp{p.a, p.b} {
			if q.q.State() != abi.QPStateRTS || len(p.hosts[i].async) != 0 {
				t.Errorf("end %d: %v, events %+v", i, q.q.State(), p.hosts[i].async)
			}
		}
	})
}

// TestAnUnreliableErrorStopsItsHalf: an error at this end stops the half of the queue pair that it
// concerns. (DEV-962)
func TestAnUnreliableErrorStopsItsHalf(t *testing.T) {
	overAll(t, func(t *testing.T) {
		for _, op := range []abi.Opcode{abi.OpRead, abi.OpFetchAdd, abi.OpCmpSwap, abi.OpSendInv, abi.OpReadInv} {
			p := newPair(t, true, 64<<10, worldConfig{}, uc)
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
			p.a.post(p.remote(op, 0), p.ma.sge(0, 8))
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
			for i, want := range []abi.WCStatus{abi.WCSuccess, abi.WCLocQPOpErr, abi.WCWRFlushErr} {
				if c := p.a.send.wait(1)[0]; c.Status != want {
					t.Fatalf("%v: completion %d: %v, want %v", op, i, c.Status, want)
				}
			}
			if st := p.a.q.State(); st != abi.QPStateSQE {
				t.Fatalf("%v: state %v", op, st)
			}
			p.a.receive(7, p.ma.sge(0, 100))
			p.b.post(abi.SendWQE{Opcode: abi.OpSend}, p.mb.sge(0, 100)) // it receives still
			success(t, p.a.recv.wait(1))
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
			p.b.receive(8, p.mb.sge(0, 5000))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 5000))
			success(t, p.a.send.wait(1))
			success(t, p.b.recv.wait(1))
		}
		p := newPair(t, true, 64<<10, worldConfig{}, uc)
		wrong := p.mb.sge(0, 100)
		wrong.LKey++
		p.b.receive(1, wrong)
		p.b.receive(2, p.mb.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
		success(t, p.a.send.wait(1))
		r := p.b.recv.wait(2)
		if r[0].Status != abi.WCLocProtErr || r[1].Status != abi.WCWRFlushErr || p.b.q.State() != abi.QPStateErr {
			t.Fatalf("%s in %v", describe(r), p.b.q.State())
		}
	})
}

// TestUnreliableMessagesWithoutMemoryAreLost deregisters the memory of long messages while they are
// sent. The peer delivers no part of them, but receives later messages.
func TestUnreliableMessagesWithoutMemoryAreLost(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{}, uc)
		other := p.hosts[0].register(p.pd[0], 4096, allAccess)
		for i := range uint64(3) {
			p.b.receive(i, p.mb.sge(0, 1<<20))
		}
		for range 2 {
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 1<<20))
		}
		p.hosts[0].e.Run(p.now)
		ok(t, p.hosts[0].fn.DeregMR(p.ma.key))
		p.run(60e9, func() bool { return p.a.q.State() == abi.QPStateSQE })
		p.settle(1e6)
		if c, got := p.b.recv.poll(); got {
			t.Fatalf("receive %+v", c)
		}
		if c := p.a.send.wait(1)[0]; c.Status != abi.WCLocProtErr {
			t.Fatal(c.Status)
		}
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
		p.a.post(abi.SendWQE{Opcode: abi.OpSendImm, Imm: 5}, other.sge(0, 4096))
		r := p.b.recv.wait(1)
		success(t, r)
		if r[0].WRID != 0 || r[0].Imm != 5 || r[0].ByteLen != 4096 {
			t.Fatalf("receive %+v", r[0])
		}
	})
}

// TestUnreliableConnectionsHaveOneMode: an unreliable connection supports no other ordering and
// error mode, and takes receives of a shared queue.
func TestUnreliableConnectionsHaveOneMode(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 64<<10, worldConfig{}, uc)
		h := p.hosts[1]
		for _, c := range []abi.CreateQP{
			{Ordering: abi.OrderingWeak}, {ErrorMode: abi.ErrorModeCompleteInError}, {Ordering: abi.OrderingUnordered, ErrorMode: abi.ErrorModeCompleteInError},
		} {
			c.PDN, c.SendCQ, c.RecvCQ, c.Type = p.pd[1], p.b.send.number, p.b.recv.number, abi.QPTypeUC
			if _, st := h.fn.CreateQP(&c); st != abi.StatusInvalidArgument {
				t.Errorf("%v, %v: %v", c.Ordering, c.ErrorMode, st)
			}
		}
		s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
		a, b := p.hosts[0].createQP(p.pd[0], uc), h.createQP(p.pd[1], qpConfig{typ: abi.QPTypeUC, srq: s})
		p.connect(a, b, true)
		s.receive(4, p.mb.sge(0, 1000))
		for _, n := range []int{2000, 900} { // the first is too long
			a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, n))
			success(t, a.send.wait(1))
		}
		r := b.recv.wait(1)
		success(t, r)
		if r[0].WRID != 4 || r[0].SRQN != s.number || r[0].ByteLen != 900 {
			t.Fatalf("receive %+v", r[0])
		}
	})
}

// TestUnreliableMessagesMatchTheModel runs random messages both ways over networks that lose,
// repeat and reorder, some of them wrong, with receives that come late, and checks what arrives: in
// the order sent, once, whole, in the receives' order. A failure replays with its seed.
func TestUnreliableMessagesMatchTheModel(t *testing.T) {
	overAll(t, func(t *testing.T) {
		arrived, sent := 0, 0
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				a, s := runUCModel(t, seed)
				arrived, sent = arrived+a, sent+s
			})
		}
		if arrived < sent/20 {
			t.Errorf("%d of %d messages arrived", arrived, sent)
		}
	})
}

// ucSlot is the memory of a message at either end.
const ucSlot = 8 << 10

func runUCModel(t *testing.T, seed uint64) (arrived, sent int) {
	r := rand.New(rand.NewPCG(seed, 77))
	imp := sim.Impairment{Delay: 20e3}
	if seed%4 != 0 {
		imp.Loss, imp.Duplicate, imp.Corrupt = 0.03*r.Float64(), 0.02, 0.01
		imp.Reorder, imp.ReorderDelay = 0.02, 100e3
	}
	const count = 40
	p := newPair(t, true, count*ucSlot, worldConfig{net: imp, seed: seed, arena: 32 << 20}, uc)
	type message struct {
		op    abi.Opcode
		n     int
		wrong bool
	}
	var messages [2][count]message
	sides := [2]*qp{p.a, p.b}
	from, to := [2]*region{p.ma, p.mb}, [2]*region{}
	for i, h := range p.hosts {
		to[i] = h.register(p.pd[i], count*ucSlot, allAccess)
		fill(from[i].bytes(), seed+uint64(i))
	}
	inbox := [2]*region{}
	for i, h := range p.hosts {
		inbox[i] = h.register(p.pd[i], count*ucSlot, allAccess)
	}
	posted := [2]int{}
	var got [2][]abi.CQE
	drain := func() {
		for i, q := range sides {
			for c, more := q.recv.poll(); more; c, more = q.recv.poll() {
				got[i] = append(got[i], c)
			}
		}
	}
	for k := range count {
		for i, q := range sides {
			for posted[i] < count && (posted[i] <= len(got[i]) || r.IntN(3) > 0) && r.IntN(8) > 0 {
				q.receive(uint64(posted[i]), inbox[i].sge(posted[i]*ucSlot, ucSlot-8))
				posted[i]++
				if r.IntN(2) > 0 {
					break
				}
			}
			m := message{op: []abi.Opcode{abi.OpSendImm, abi.OpWriteImm, abi.OpSendImm, abi.OpWrite}[r.IntN(4)], n: r.IntN(ucSlot - 8)}
			if r.IntN(2) == 0 {
				m.n %= pathMTU
			}
			x := abi.SendWQE{WRID: uint64(k), Opcode: m.op, Flags: abi.SendSignaled, Imm: uint32(k), RemoteAddr: to[1-i].addr + uint64(k*ucSlot), RKey: to[1-i].key}
			if r.IntN(8) == 0 {
				switch m.op {
				case abi.OpSendImm:
					m.n = ucSlot
				default:
					x.RKey++
					m.n = max(m.n, 1)
				}
				m.wrong = true
			}
			messages[i][k] = m
			q.post(x, from[i].sge(k*ucSlot, m.n))
		}
		p.settle(r.Int64N(400e3))
		drain()
	}
	for i, q := range sides {
		for k, c := range q.send.wait(count) {
			if c.WRID != uint64(k) || c.Status != abi.WCSuccess {
				t.Fatalf("send %d of side %d: %d %v", k, i, c.WRID, c.Status)
			}
		}
	}
	p.settle(50e6)
	drain()
	for i := range sides {
		last := -1
		for n, c := range got[i] {
			k := int(c.Imm)
			if c.Status != abi.WCSuccess || c.WRID != uint64(n) || k <= last || k >= count {
				t.Fatalf("receive %d of side %d: %+v after message %d", n, i, c, last)
			}
			last = k
			m := messages[1-i][k]
			data := inbox[i].bytes()[n*ucSlot:][:m.n]
			if m.op == abi.OpWriteImm {
				data = to[i].bytes()[k*ucSlot:][:m.n]
			}
			if m.wrong || m.op == abi.OpWrite || int(c.ByteLen) != m.n || !bytes.Equal(data, from[1-i].bytes()[k*ucSlot:][:m.n]) {
				t.Fatalf("receive %d of side %d: %+v, sent %+v", n, i, c, m)
			}
		}
		for k, m := range messages[1-i] {
			slot := to[i].bytes()[k*ucSlot:][:ucSlot]
			for at, b := range slot { // what was not lost of a WRITE, packet by packet
				if b != 0 && (m.op == abi.OpSendImm || m.wrong || at >= m.n || b != from[1-i].bytes()[k*ucSlot+at]) {
					t.Fatalf("message %d to side %d, %+v: byte %d is %#x", k, i, m, at, b)
				}
			}
			if m.op != abi.OpWrite && !m.wrong {
				sent++
			}
		}
		arrived += len(got[i])
		if st := sides[i].q.State(); st != abi.QPStateRTS {
			t.Fatalf("side %d in %v", i, st)
		}
	}
	return arrived, sent
}

// TestUnreliablePacketsToNobodyCountAsSent: a wired queue pair whose peer is not there, or has
// gone, counts its packets as sent. (DEV-963)
func TestUnreliablePacketsToNobodyCountAsSent(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{}, uc)
	a := p.hosts[0].createQP(p.pd[0], uc)
	a.modify(abi.ModifyQP{
		Mask:  abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN,
		State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: 77, DGID: [16]byte{15: 2},
	})
	a.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS})
	begun := p.now
	for i := range uint64(20) {
		a.post(abi.SendWQE{WRID: i, Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
	}
	for i, c := range a.send.wait(20) {
		if c.WRID != uint64(i) || c.Status != abi.WCSuccess {
			t.Fatalf("%d: %d %v", i, c.WRID, c.Status)
		}
	}
	if waited := p.now - begun; waited < 1e9 {
		t.Errorf("its connection had %d ns to come", waited)
	}
	begun = p.now
	a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
	success(t, a.send.wait(1))
	if waited := p.now - begun; waited > 1e9 {
		t.Errorf("waited %d ns again", waited)
	}
	bad := p.ma.sge(0, 4000)
	bad.LKey++
	a.post(abi.SendWQE{Opcode: abi.OpSend}, bad)
	if c := a.send.wait(1)[0]; c.Status != abi.WCLocProtErr || a.q.State() != abi.QPStateSQE {
		t.Fatalf("%v in %v", c.Status, a.q.State())
	}

	// The connection comes late, and a queue pair in SQE keeps receiving. It ends with requests under
	// way.
	b := p.hosts[1].createQP(p.pd[1], uc)
	p.connect(a, b, true)
	a.receive(1, p.ma.sge(0, 100))
	b.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.mb.sge(0, 100))
	success(t, b.send.wait(1))
	success(t, a.recv.wait(1))
	a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
	b.receive(1, p.mb.sge(0, 100))
	a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
	success(t, a.send.wait(1))
	success(t, b.recv.wait(1))
	p.cut(0, true)
	for range 10 {
		a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
	}
	p.settle(1e6)
	if _, got := a.send.poll(); got {
		t.Fatal("a send is done that Falcon has not sent: the test tests nothing")
	}
	a.q.PeerLeft(p.now)
	success(t, a.send.wait(10))
	a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
	success(t, a.send.wait(1))
	if st := a.q.State(); st != abi.QPStateRTS {
		t.Fatal(st)
	}
}

// TestLongUnreliableMessagesArriveWholeOrNot sends messages under some loss. A message that loses a
// packet is lost as a whole, and parts of different messages are never joined.
func TestLongUnreliableMessagesArriveWholeOrNot(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newPair(t, true, 1<<20, worldConfig{seed: 5, net: sim.Impairment{Delay: 10e3, Loss: 0.02}}, uc)
	const n = 20 << 10
	arrived := 0
	for i := range 200 {
		if p.b.recv.reader != nil && i == arrived {
			p.b.receive(uint64(i), p.mb.sge(0, n))
		}
		for at := 0; at < n; at += 8 {
			binary.LittleEndian.PutUint64(p.ma.bytes()[at:], uint64(i))
		}
		p.a.post(abi.SendWQE{Opcode: abi.OpSendImm, Flags: abi.SendSignaled, Imm: uint32(i)}, p.ma.sge(0, n))
		success(t, p.a.send.wait(1))
		p.settle(1e6)
		c, got := p.b.recv.poll()
		if !got {
			continue
		}
		arrived++
		for at := 0; at < n; at += 8 {
			if v := binary.LittleEndian.Uint64(p.mb.bytes()[at:]); v != uint64(i) || c.Imm != uint32(i) || c.ByteLen != n {
				t.Fatalf("message %d: byte %d is of message %d, %+v", i, at, v, c)
			}
		}
		p.b.receive(uint64(i), p.mb.sge(0, n))
	}
	if arrived < 60 || arrived > 190 {
		t.Errorf("%d of 200 messages of 20 packets arrived with 2 %% loss", arrived)
	}
}

// TestAQueuePairThatWaitedForCreditLeavesSQE: over RoCEv2, one that waited for credit when a send failed sends
// again when it is back in RTS.
func TestAQueuePairThatWaitedForCreditLeavesSQE(t *testing.T) {
	worldsOver(t, byRoCE)
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 8
	p := newPair(t, true, 1<<20, worldConfig{}, uc)
	a, b := p.hosts[0].createQP(p.pd[0], uc), p.hosts[1].createQP(p.pd[1], uc)
	node := credit.New(nil, limit)
	for i, q := range []*qp{a, b} {
		peer := p.roce.ports[1-i].Addr
		c := p.roce.ports[i].Open(p.now, transport.Way{Peer: peer}, []*credit.Node{node, nil}[i]).(*roce.Conn)
		ok(t, q.q.Connect(p.now, c, []uint32{b.number, a.number}[i], p.mtu, peer.As16()))
	}
	other := p.hosts[0].register(p.pd[0], 4096, allAccess)
	b.receive(1, p.mb.sge(0, 4096))
	a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 1<<20))
	p.hosts[0].e.Run(p.now) // eight packets have all the credit
	ok(t, p.hosts[0].fn.DeregMR(p.ma.key))
	p.run(60e9, func() bool { return a.q.State() == abi.QPStateSQE })
	if c := a.send.wait(1)[0]; c.Status != abi.WCLocProtErr {
		t.Fatal(c.Status)
	}
	if u := node.InUse(); u != (credit.Cost{}) {
		t.Fatalf("in use %v", u)
	}
	a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
	a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, other.sge(0, 4096))
	p.settle(10e9)
	if c, got := a.send.poll(); !got || c.Status != abi.WCSuccess {
		t.Errorf("ten seconds later the send is not done: %v %+v", got, c)
	}
}
