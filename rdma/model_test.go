package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestRandomRequestsMatchTheModel runs random requests in both directions over several connections
// and a link that loses, reorders and duplicates, and compares completions and every byte of memory
// with a model that runs the requests one by one. There are connections of every ordering, with
// shared receive queues, in XRC domains, with memory windows that come and go, and such that
// complete in error, whose requests are wrong now and then. A failure replays with its seed.
// Datagrams have a model of their own, since they may be lost: TestDatagramsMatchTheModel.
func TestRandomRequestsMatchTheModel(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

const modelSlots = 8 // requests per batch and side

// modelMTU returns the data bytes of a packet in the run of a seed: over Falcon 1 to 32 KiB.
func modelMTU(seed uint64) int {
	if over == byRoCE || over == byIWARP {
		return pathMTU
	}
	return 1024 << (seed % 6)
}

// modelSide is one QP of a connection with its memory: what its own requests use, what the peer's
// requests use, and what it receives into, each with the model's copy.
type modelSide struct {
	p                     *qp
	mtu                   int // data bytes of a packet
	packet                int // of one that is a message by itself, as far as its driver knows
	slot                  int // bytes one request may touch
	local, target, inbox  *region
	mLocal, mTarget, mBox []byte
	sent                  uint64
	received              uint64
	want                  []abi.CQE
	wantRecv              []abi.CQE
	peer                  *modelSide

	srq    *srq // receives come from it
	inbox2 *cq  // where they complete, if not in the QP's CQ
	silent bool // an XRC target
	window uint32
	zero   bool // the window counts from 0

	wrong     bool // some requests are wrong: the queue pairs complete in error
	unordered bool
}

// receive posts a receive where the side takes them from.
func (s *modelSide) receive(wrid uint64, sges ...abi.SGE) {
	if s.srq != nil {
		s.srq.receive(wrid, sges...)
		return
	}
	s.p.receive(wrid, sges...)
}

// recvCQ is where receives complete.
func (s *modelSide) recvCQ() *cq {
	if s.inbox2 != nil {
		return s.inbox2
	}
	return s.p.recv
}

// bindWindow opens all of the target by a window too.
func (s *modelSide) bindWindow(t *testing.T, r *rand.Rand) {
	s.window = incKey(s.window)
	b := abi.BindMW{Addr: s.target.addr, Length: uint64(modelSlots * s.slot), LKey: s.target.key, Access: verbs.RemoteRights}
	if s.zero = r.IntN(2) == 0; s.zero {
		b.Access |= abi.AccessZeroBased
	}
	s.p.postBind(s.window, b)
	success(t, s.p.send.wait(1))
}

// unbindWindow ends the binding by a request of either side, and makes another.
func (s *modelSide) unbindWindow(t *testing.T, r *rand.Rand) {
	if r.IntN(2) == 0 {
		s.p.postInvalidate(s.window)
		success(t, s.p.send.wait(1))
	} else {
		s.receive(99)
		s.peer.p.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: s.window})
		success(t, s.peer.p.send.wait(1))
		if c := s.recvCQ().wait(1)[0]; c.Status != abi.WCSuccess || c.Flags != abi.WCFlagInv || c.Imm != s.window {
			t.Fatalf("receive %+v", c)
		}
	}
	s.bindWindow(t, r)
}

func runModel(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 42))
	imp := sim.Impairment{Delay: 20e3}
	if seed%4 != 0 {
		imp.Loss = 0.03 * r.Float64()
		imp.Jitter = 40e3
		imp.Duplicate = 0.02
		imp.Reorder, imp.ReorderDelay = 0.05, 200e3
		imp.Corrupt = 0.01
	}
	mtu := modelMTU(seed)
	w := newWorld(t, worldConfig{arena: 32 << 20, net: imp, seed: seed, mtu: mtu})
	var sides []*modelSide
	var orderedOf []bool
	for range 1 + r.IntN(3) {
		var pr [2]*modelSide
		var pds [2]uint32
		ordered := r.IntN(2) == 0 || over == byRoCE || over == byIWARP
		kind := r.IntN(6) // 1: shared receive queues; 2: XRC; 3: complete in error; 4: unordered; else ordinary
		if over == byRoCE && kind > 2 || over == byIWARP && kind > 1 {
			kind = 0 // it has none of these
		}
		if kind == 4 {
			ordered = false
		}
		for i, h := range w.hosts {
			pd, st := h.fn.AllocPD()
			ok(t, st)
			pds[i] = pd
			c, s := qpConfig{cie: kind == 3 || kind == 4}, &modelSide{mtu: mtu, packet: min(mtu, 4096), slot: max(24<<10, 2*mtu+8192), wrong: kind == 3 || kind == 4, unordered: kind == 4}
			switch {
			case kind == 4:
				c.ordering = abi.OrderingUnordered
			case !ordered:
				c.ordering = abi.OrderingWeak
			}
			switch {
			case kind == 1 && ordered: // otherwise the order of arrival decides which receive a message takes
				s.srq = h.createSRQ(abi.CreateSRQ{PDN: pd})
				c.srq = s.srq
			case kind == 2 && i == 0:
				c.typ = abi.QPTypeXRCSend
			case kind == 2 && ordered:
				s.silent, s.inbox2 = true, h.createCQ(8)
				c.xrcd, st = h.fn.OpenXRCD()
				ok(t, st)
				s.srq = h.createSRQ(abi.CreateSRQ{PDN: pd, Type: abi.SRQTypeXRC, XRCDN: c.xrcd, CQN: s.inbox2.number})
				c.typ = abi.QPTypeXRCRecv
			}
			if kind == 2 && !ordered {
				c.typ = 0
			}
			s.p = h.createQP(pd, c)
			for _, m := range []struct {
				r **region
				b *[]byte
			}{{&s.local, &s.mLocal}, {&s.target, &s.mTarget}, {&s.inbox, &s.mBox}} {
				*m.r = h.register(pd, modelSlots*s.slot, bindable)
				fill((*m.r).bytes(), r.Uint64())
				*m.b = bytes.Clone((*m.r).bytes())
			}
			pr[i] = s
		}
		pr[0].peer, pr[1].peer = pr[1], pr[0]
		w.connect(pr[0].p, pr[1].p, ordered)
		for i, s := range pr {
			if s.p.q.Type() == abi.QPTypeRC && r.IntN(2) == 0 {
				s.window = w.hosts[i].window(pds[i])
				s.bindWindow(t, r)
			}
		}
		sides = append(sides, pr[0], pr[1])
		orderedOf = append(orderedOf, ordered, ordered)
	}
	for range 4 {
		// Receives may come late: then the senders hear receiver not ready.
		late := r.IntN(3) == 0 && over != byIWARP
		var receives []func()
		for i, s := range sides {
			if s.silent {
				continue
			}
			fenceNext := false
			for slot := range 1 + r.IntN(modelSlots) {
				fenceNext = s.post(r, slot, orderedOf[i], fenceNext, &receives)
			}
		}
		if late {
			w.settle(r.Int64N(3e6))
		}
		for _, f := range receives {
			f()
			if late && r.IntN(4) == 0 {
				w.settle(r.Int64N(1e6))
			}
		}
		for _, s := range sides {
			s.compare(t)
		}
		for _, s := range sides {
			if !bytes.Equal(s.target.bytes(), s.mTarget) {
				t.Fatalf("target memory of QP %#x differs from the model at %d", s.p.number, firstDiff(s.target.bytes(), s.mTarget))
			}
			if s.window != 0 && r.IntN(3) == 0 {
				s.unbindWindow(t, r)
			}
		}
	}
	for _, h := range w.hosts {
		if len(h.async) != 0 {
			t.Fatalf("events %+v", h.async)
		}
	}
}

// post posts one random request and carries it out in the model. It reports whether the next
// request needs a fence.
func (s *modelSide) post(r *rand.Rand, slot int, ordered, fence bool, receives *[]func()) bool {
	n := r.IntN(300)
	switch r.IntN(4) {
	case 0:
		n = r.IntN(s.slot - 4000)
	case 1:
		n = []int{0, 1, s.mtu - 1, s.mtu, s.mtu + 1, min(3*s.mtu, s.slot-4000)}[r.IntN(6)]
	}
	if s.wrong && r.IntN(6) == 0 {
		s.postWrong(r, slot, n, receives)
		return false
	}
	off := slot*s.slot + r.IntN(2000)
	remote := off
	if ordered {
		remote = r.IntN(modelSlots*s.slot - n - 16) // overlaps earlier requests
	}
	s.sent++
	x := abi.SendWQE{WRID: s.sent, Flags: abi.SendSignaled, RemoteAddr: s.peer.target.addr + uint64(remote), RKey: s.peer.target.key}
	if fence || r.IntN(10) == 0 {
		x.Flags |= abi.SendFence
	}
	local, target := s.mLocal[off:off+n], s.peer.mTarget[remote:remote+n]
	c := abi.CQE{WRID: s.sent, QPN: s.p.number, SrcQP: s.peer.p.number}
	inline := n <= 192 && r.IntN(2) == 0
	reads := false
	var masks abi.AtomicMasks
	switch op := r.IntN(10); {
	case op < 3:
		x.Opcode, c.Opcode = abi.OpWrite, abi.WCOpWrite
		copy(target, local)
	case op < 5:
		x.Opcode, c.Opcode, c.ByteLen = abi.OpRead, abi.WCOpRead, uint32(n)
		copy(local, target)
		reads, inline = true, false
	case op < 6:
		n = 8
		remote = (remote + 7) &^ 7
		x.RemoteAddr = s.peer.target.addr + uint64(remote)
		target = s.peer.mTarget[remote : remote+8]
		old := binary.LittleEndian.Uint64(target)
		c.ByteLen = 8
		switch r.IntN(4) {
		case 0, 1:
			x.Opcode, x.CompareAdd, x.Swap = abi.OpMaskedFetchAdd, r.Uint64(), r.Uint64()
			masks = abi.AtomicMasks{SwapAdd: r.Uint64(), Compare: r.Uint64() & r.Uint64() & r.Uint64()}
			if r.IntN(2) == 0 {
				x.Opcode, x.CompareAdd = abi.OpMaskedCmpSwap, old^uint64(r.IntN(16))
			}
			c.Opcode = verbs.WCOpcode(x.Opcode)
			binary.LittleEndian.PutUint64(target, masked(&x, &masks, old))
		case 2:
			x.Opcode, c.Opcode, x.CompareAdd = abi.OpFetchAdd, abi.WCOpFetchAdd, r.Uint64()
			binary.LittleEndian.PutUint64(target, old+x.CompareAdd)
		default:
			x.Opcode, c.Opcode, x.CompareAdd, x.Swap = abi.OpCmpSwap, abi.WCOpCmpSwap, old+uint64(r.IntN(2)), r.Uint64()
			if x.CompareAdd == old {
				binary.LittleEndian.PutUint64(target, x.Swap)
			}
		}
		binary.LittleEndian.PutUint64(s.mLocal[off:], old)
		reads, inline = true, false
	default:
		// SEND, with or without immediate data, or WRITE with immediate data: each takes a receive.
		if s.unordered {
			n = min(n, s.packet)
			local, target = local[:n], target[:n]
		}
		s.peer.received++
		wrid := s.peer.received
		rc := abi.CQE{WRID: wrid, QPN: s.peer.p.number, SrcQP: s.p.number, ByteLen: uint32(n), Opcode: abi.WCOpRecv}
		x.Opcode, c.Opcode = abi.OpSend, abi.WCOpSend
		switch op {
		case 7:
			if over == byIWARP {
				op = 6 // it has no immediate data there
				break
			}
			x.Opcode = abi.OpSendImm
		case 8:
			x.Opcode, c.Opcode, rc.Opcode = abi.OpWriteImm, abi.WCOpWrite, abi.WCOpRecvWriteImm
			copy(target, local)
		}
		if op == 7 || op == 8 {
			x.Imm = r.Uint32()
			rc.Imm, rc.Flags = x.Imm, abi.WCFlagImm
		}
		at := int(wrid%modelSlots) * s.slot
		if op != 8 {
			copy(s.peer.mBox[at:], local)
		}
		peer, parts := s.peer, 1+r.IntN(4)
		*receives = append(*receives, func() { peer.receive(wrid, split(peer.inbox, at, s.slot, parts)...) })
		if peer.srq != nil {
			rc.SRQN = peer.srq.number
		}
		s.peer.wantRecv = append(s.peer.wantRecv, rc)
	}
	if s.peer.srq != nil {
		x.RemoteSRQN = s.peer.srq.number
	}
	if s.peer.window != 0 && x.RKey != 0 && r.IntN(2) == 0 {
		x.RKey = s.peer.window
		if s.peer.zero {
			x.RemoteAddr -= s.peer.target.addr
		}
	}
	s.want = append(s.want, c)
	switch {
	case x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd:
		s.p.postMasked(x, masks, s.local.sge(off, 8))
	case inline:
		s.p.postInline(x, bytes.Clone(s.mLocal[off:off+n]))
	default:
		parts := 1 + r.IntN(4)
		if x.Opcode == abi.OpCmpSwap || x.Opcode == abi.OpFetchAdd {
			parts = 1
		}
		s.p.post(x, split(s.local, off, n, parts)...)
	}
	return reads
}

// postWrong posts a request that fails and changes nothing.
func (s *modelSide) postWrong(r *rand.Rand, slot, n int, receives *[]func()) {
	s.sent++
	n = max(n, 1)
	x := abi.SendWQE{WRID: s.sent, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: s.peer.target.addr, RKey: s.peer.target.key ^ 1}
	sge := s.local.sge(slot*s.slot, n)
	want, recv := abi.WCRemAccessErr, abi.WCSuccess
	room := s.slot
	switch r.IntN(7) {
	case 0:
	case 1:
		x.Opcode = abi.OpRead
	case 2:
		x.Opcode, x.RKey, sge.Length, want = abi.OpFetchAdd, s.peer.target.key, 8, abi.WCRemInvReqErr
		x.RemoteAddr++
	case 3:
		sge.LKey ^= 1
		want = abi.WCLocProtErr
	case 4:
		x.Opcode, want = 77, abi.WCLocQPOpErr
	case 5: // one packet: of a longer message the first ones would be placed
		sge.Length = uint32(min(n, s.packet))
		room = int(sge.Length) - 1
		x.Opcode, want, recv = abi.OpSend, abi.WCRemInvReqErr, abi.WCLocLenErr
	case 6:
		if s.unordered {
			sge.Length = uint32(min(n, s.packet))
		}
		x.Opcode, recv = abi.OpWriteImm, abi.WCLocAccessErr
	}
	s.want = append(s.want, abi.CQE{WRID: s.sent, QPN: s.p.number, Status: want})
	if recv != abi.WCSuccess {
		peer := s.peer
		peer.received++
		wrid := peer.received
		at := int(wrid%modelSlots) * s.slot
		*receives = append(*receives, func() { peer.receive(wrid, split(peer.inbox, at, room, 1)...) })
		peer.wantRecv = append(peer.wantRecv, abi.CQE{WRID: wrid, QPN: peer.p.number, Status: recv, Opcode: abi.WCOpRecv})
	}
	s.p.post(x, sge)
}

// valid leaves of a completion what says something (DEV-706).
func valid(c abi.CQE) abi.CQE {
	if c.Timestamp, c.Tail = 0, 0; c.Status == abi.WCSuccess {
		return c
	}
	return abi.CQE{WRID: c.WRID, QPN: c.QPN, Status: c.Status, Opcode: c.Opcode & abi.WCOpRecv}
}

// compare waits for the completions the model expects and compares memory.
func (s *modelSide) compare(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		q    *cq
		want *[]abi.CQE
	}{{s.p.send, &s.want}, {s.recvCQ(), &s.wantRecv}} {
		all := c.q.wait(len(*c.want))
		if s.unordered { // as they come, each once
			slices.SortFunc(all, func(a, b abi.CQE) int { return int(a.WRID) - int(b.WRID) })
		}
		for i, got := range all {
			if got = valid(got); got != (*c.want)[i] {
				t.Fatalf("completion %d: %+v\nwant %+v", i, got, (*c.want)[i])
			}
		}
		*c.want = (*c.want)[:0]
	}
	for _, m := range []struct {
		name string
		r    *region
		want []byte
	}{{"local", s.local, s.mLocal}, {"inbox", s.inbox, s.mBox}} {
		if !bytes.Equal(m.r.bytes(), m.want) {
			t.Fatalf("%s memory of QP %#x differs from the model at %d", m.name, s.p.number, firstDiff(m.r.bytes(), m.want))
		}
	}
	// The peer's requests to target may still run; its completions are awaited first.
	if len(s.peer.want) == 0 && !bytes.Equal(s.target.bytes(), s.mTarget) {
		t.Fatalf("target memory of QP %#x differs from the model at %d", s.p.number, firstDiff(s.target.bytes(), s.mTarget))
	}
}

func firstDiff(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
