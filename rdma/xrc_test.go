package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// xrc is an XRC connection from host 0 to host 1, and two SRQs of its domain there.
type xrc struct {
	*pair
	xrcd uint32
	srqs [2]*srq
	cqs  [2]*cq
}

func newXRC(t testing.TB, ordered bool) *xrc {
	t.Helper()
	x := &xrc{pair: newPair(t, ordered, 64<<10, worldConfig{}, qpConfig{})}
	h := x.hosts[1]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	var st abi.Status
	x.xrcd, st = h.fn.OpenXRCD()
	ok(t, st)
	for i := range x.srqs {
		x.cqs[i] = h.createCQ(8)
		x.srqs[i] = h.createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: x.xrcd, CQN: x.cqs[i].number})
	}
	x.a = x.hosts[0].createQP(x.pd[0], qpConfig{typ: abi.QPTypeXRCSend})
	x.b = h.createQP(0, qpConfig{typ: abi.QPTypeXRCRecv, xrcd: x.xrcd})
	x.connect(x.a, x.b, ordered)
	return x
}

// TestXRCReachesTheSharedQueueItNames sends every kind of request over one XRC connection to two
// SRQs. (DEV-924)
func TestXRCReachesTheSharedQueueItNames(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		x := newXRC(t, ordered)
		fill(x.ma.bytes(), 5)
		var want [2]int
		for i := range 30 {
			to := i % 3 % 2
			var w abi.SendWQE
			n := 100 + i*300
			off := i * 2000 % 40000
			switch i % 5 {
			case 0:
				w = abi.SendWQE{Opcode: abi.OpSend}
			case 1:
				w = x.remote(abi.OpWriteImm, off)
			case 2:
				w = x.remote(abi.OpWrite, off)
			case 3:
				w = x.remote(abi.OpRead, off)
			case 4:
				w = x.remote(abi.OpFetchAdd, off)
				n = 8
			}
			w.WRID, w.Flags, w.Imm, w.RemoteSRQN = uint64(i), abi.SendSignaled, uint32(i), x.srqs[to].number
			if w.Opcode == abi.OpSend || w.Opcode == abi.OpWriteImm {
				x.srqs[to].receive(uint64(1000+want[to]), x.mb.sge(50000, 12000))
				want[to]++
			}
			at := 1000
			if w.Opcode == abi.OpRead || w.Opcode == abi.OpFetchAdd {
				at = 40000
			}
			x.a.post(w, x.ma.sge(at, n))
			if s := x.a.send.wait(1); s[0].Status != abi.WCSuccess || s[0].WRID != uint64(i) {
				t.Fatalf("request %d (%v): %+v", i, w.Opcode, s[0])
			}
			switch w.Opcode {
			case abi.OpWrite, abi.OpWriteImm:
				if !bytes.Equal(x.mb.bytes()[off:off+n], x.ma.bytes()[at:at+n]) {
					t.Fatalf("request %d: wrong bytes written", i)
				}
			case abi.OpRead:
				if !bytes.Equal(x.mb.bytes()[off:off+n], x.ma.bytes()[at:at+n]) {
					t.Fatalf("request %d: wrong bytes read", i)
				}
			}
		}
		for i := range want {
			for k, c := range x.cqs[i].wait(want[i]) {
				if c.Status != abi.WCSuccess || c.WRID != uint64(1000+k) || c.SRQN != x.srqs[i].number || c.QPN != x.b.number || c.SrcQP != x.a.number {
					t.Fatalf("SRQ %d: completion %+v", i, c)
				}
			}
		}
	})
}

// TestWrongXRCRequestsCostTheConnection: what an XRC request names wrongly costs the connection,
// and nothing else.
func TestWrongXRCRequestsCostTheConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		post func(x *xrc)
		want abi.WCStatus
	}{
		{"no such SRQ", func(x *xrc) { x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: 0x55}, x.ma.sge(0, 8)) }, abi.WCRemInvReqErr},
		{"a basic SRQ", func(x *xrc) {
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1]})
			x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: s.number}, x.ma.sge(0, 8))
		}, abi.WCRemInvReqErr},
		{"an SRQ of another domain", func(x *xrc) {
			other, _ := x.hosts[1].fn.OpenXRCD()
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: other, CQN: x.cqs[0].number})
			x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: s.number}, x.ma.sge(0, 8))
		}, abi.WCRemInvReqErr},
		{"memory of another domain than the SRQ's", func(x *xrc) {
			pd, _ := x.hosts[1].fn.AllocPD()
			m := x.hosts[1].register(pd, 4096, allAccess)
			w := abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr, RKey: m.key, RemoteSRQN: x.srqs[0].number}
			x.a.post(w, x.ma.sge(0, 8))
		}, abi.WCRemAccessErr},
		{"READ of memory of another domain", func(x *xrc) {
			pd, _ := x.hosts[1].fn.AllocPD()
			m := x.hosts[1].register(pd, 4096, allAccess)
			w := abi.SendWQE{Opcode: abi.OpRead, RemoteAddr: m.addr, RKey: m.key, RemoteSRQN: x.srqs[0].number}
			x.a.post(w, x.ma.sge(0, 8))
		}, abi.WCRemAccessErr},
		{"an SRQ that failed", func(x *xrc) {
			small := x.hosts[1].createCQ(1)
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: x.xrcd, CQN: small.number})
			for i := range 4 {
				s.receive(uint64(i), x.mb.sge(0, 100))
			}
			for range 4 {
				x.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled, RemoteSRQN: s.number}, x.ma.sge(0, 8))
				x.settle(1e7)
			}
			success(x.t, x.a.send.wait(3)) // the third overflowed the CQ
			if ev := x.hosts[1].async; len(ev) < 2 || ev[0].typ != abi.EventCQError || ev[1].typ != abi.EventSRQError || ev[1].number != s.number {
				x.t.Fatalf("events %+v", ev)
			}
		}, abi.WCRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newXRC(t, true)
			c.post(x)
			if got := x.a.send.wait(1)[0]; got.Status != c.want {
				t.Fatalf("%v, want %v", got.Status, c.want)
			}
		})
	}
	t.Run("an RC request at an XRC target", func(t *testing.T) {
		x := newXRC(t, true)
		a := x.hosts[0].createQP(x.pd[0], qpConfig{})
		b := x.hosts[1].createQP(0, qpConfig{typ: abi.QPTypeXRCRecv, xrcd: x.xrcd})
		x.connect(a, b, true)
		a.post(x.remote(abi.OpWrite, 0), x.ma.sge(0, 8))
		if got := a.send.wait(1)[0]; got.Status != abi.WCRemInvReqErr {
			t.Fatal(got.Status)
		}
	})
	t.Run("an XRC request at an RC queue pair", func(t *testing.T) {
		x := newXRC(t, true)
		a := x.hosts[0].createQP(x.pd[0], qpConfig{typ: abi.QPTypeXRCSend})
		b := x.hosts[1].createQP(x.pd[1], qpConfig{})
		x.connect(a, b, true)
		a.post(x.remote(abi.OpWrite, 0), x.ma.sge(0, 8))
		if got := a.send.wait(1)[0]; got.Status != abi.WCRemInvReqErr {
			t.Fatal(got.Status)
		}
	})
}

// TestXRCObjectsInUseAreBusy checks which objects cannot be destroyed while others exist.
func TestXRCObjectsInUseAreBusy(t *testing.T) {
	x := newXRC(t, true)
	f := x.hosts[1].fn
	busy := func(name string, st abi.Status) {
		t.Helper()
		if st != abi.StatusBusy {
			t.Errorf("%s in use: %v", name, st)
		}
	}
	busy("domain", f.CloseXRCD(x.xrcd))
	busy("CQ", f.DestroyCQ(x.cqs[0].number))
	ok(t, f.DestroyQP(x.now, x.b.number))
	busy("domain", f.CloseXRCD(x.xrcd))
	for i, s := range x.srqs {
		ok(t, f.DestroySRQ(s.number))
		ok(t, f.DestroyCQ(x.cqs[i].number))
	}
	ok(t, f.CloseXRCD(x.xrcd))
	if f.CloseXRCD(x.xrcd) != abi.StatusNotFound || f.DestroySRQ(x.srqs[0].number) != abi.StatusNotFound {
		t.Error("destroyed twice")
	}
}

// TestXRCQueuePairsNeedTheMasksOfVerbs: both ends of an XRC connection come up with the masks of
// verbs, which ibv_xsrq_pingpong sends, and neither with less. (DEV-907)
func TestXRCQueuePairsNeedTheMasksOfVerbs(t *testing.T) {
	const (
		state = abi.QPAttrState
		init  = state | abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrAccess
		path  = state | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN
		recv  = path | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
		retry = state | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic
	)
	for name, c := range map[string]struct {
		typ      abi.QPType
		rtr, rts uint32
	}{
		"initiator":                 {abi.QPTypeXRCSend, path, retry},
		"target":                    {abi.QPTypeXRCRecv, recv, state | abi.QPAttrTimeout | abi.QPAttrSQPSN},
		"initiator, masks of RC":    {abi.QPTypeXRCSend, recv, retry},
		"target, masks of RC":       {abi.QPTypeXRCRecv, recv, retry},
		"reliable connection, both": {abi.QPTypeRC, recv, retry},
	} {
		w := newWorld(t, worldConfig{})
		h := w.hosts[0]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		pd, _ := h.fn.AllocPD()
		xrcd, _ := h.fn.OpenXRCD()
		p := h.createQP(pd, qpConfig{typ: c.typ, xrcd: xrcd})
		peer := [16]byte{15: 9}
		try := func(mask uint32, to abi.QPState) abi.Status {
			return h.fn.ModifyQP(w.now, &abi.ModifyQP{
				QPN: p.number, Mask: mask, State: to, PathMTU: abi.MTU1024, DestQPN: 5, DGID: peer, Timeout: 14, RetryCnt: 7, MinRNRTimer: 12,
				MaxDestRdAtomic: 1, MaxRdAtomic: 1,
			})
		}
		steps := []struct {
			mask uint32
			to   abi.QPState
		}{{init, abi.QPStateInit}, {c.rtr, abi.QPStateRTR}, {c.rts, abi.QPStateRTS}, {state, abi.QPStateSQD}}
		for _, s := range steps {
			for bit := uint32(2); bit <= s.mask; bit <<= 1 {
				required := s.mask&bit != 0 && s.to != abi.QPStateInit && s.to != abi.QPStateSQD
				if required && name != "initiator, masks of RC" && name != "target, masks of RC" {
					if st := try(s.mask&^bit, s.to); st != abi.StatusInvalidArgument {
						t.Errorf("%s to %v without %#x: %v", name, s.to, bit, st)
					}
				}
			}
			if st := try(s.mask, s.to); st != abi.StatusOK {
				t.Fatalf("%s to %v: %v", name, s.to, st)
			}
		}
		if st := try(abi.QPAttrAV, 0); st != abi.StatusOK {
			t.Errorf("%s: the path again: %v", name, st)
		}
		peer[0]++
		if st := try(abi.QPAttrAV, 0); st != abi.StatusInvalidArgument {
			t.Errorf("%s: another path: %v", name, st)
		}
	}
}

// TestBothEndsOfXRCAreShown: both ends of an XRC connection can be looked at, though the target has
// no queue.
func TestBothEndsOfXRCAreShown(t *testing.T) {
	x := newXRC(t, true)
	for i, q := range []*qp{x.a, x.b} {
		if info := q.info(); info.Number != q.number || info.Type != q.q.Type() || info.State != abi.QPStateRTS || info.Posted != 0 {
			t.Errorf("QP of NIC %d: %+v", i, info)
		}
		x.hosts[i].fn.EachQueue(func(u *verbs.QueueInfo) {
			if u.Number == x.b.number && i == 1 && u.Kind != verbs.CompletionQueue {
				t.Errorf("a target with a queue: %+v", u)
			}
		})
	}
}
