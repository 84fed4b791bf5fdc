package rdma

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestReadsInFlightAreLimited, at the initiator: request packets of READs and atomics without their
// answers are never more than the peer takes, however long the READs are. (RDMA over Falcon §8.3.2,
// DEV-953)
func TestReadsInFlightAreLimited(t *testing.T) {
	for _, m := range modes {
		p := newPair(t, m.ordered, 1<<16, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
		p.a.q.LimitReads(3)
		fill(p.mb.bytes(), 4)
		for i := range 4 {
			p.a.post(p.remote(abi.OpRead, i*16384), p.ma.sge(i*16384, 16384))
		}
		most, cqes := 0, 0
		p.run(1e9, func() bool {
			most = max(most, p.a.info().Pulls)
			for p.a.send.drop() {
				cqes++
			}
			return cqes == 4
		})
		if most != 3 || string(p.ma.bytes()) != string(p.mb.bytes()) {
			t.Errorf("%s: %d packets in flight, the peer takes 3", m.name, most)
		}
	}
}

// TestATargetRefusesReadsBeyondItsLimit, at the target: a request packet more than it takes is
// refused as invalid.
func TestATargetRefusesReadsBeyondItsLimit(t *testing.T) {
	for _, m := range modes[:2] {
		for n := range 4 {
			qc := qpConfig{ordering: m.ordering}
			p := newPair(t, m.ordered, 4096, worldConfig{}, qc)
			p.a, p.b = p.hosts[0].createQP(p.pd[0], qc), p.hosts[1].createQP(p.pd[1], qc)
			p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMaxDestRdAtomic, MaxDestRdAtomic: 2}) // and nobody told the peer
			p.connect(p.a, p.b, m.ordered)
			for range n {
				p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 100))
			}
			want := abi.WCSuccess
			if n > 2 {
				want = abi.WCRemInvReqErr
			}
			for i, c := range p.a.send.wait(n) {
				if i == n-1 && c.Status != want {
					t.Errorf("%s: READ %d of %d: %s", m.name, i+1, n, c.Status)
				}
			}
			if failed := p.b.q.State() == abi.QPStateErr; failed != (n > 2) {
				t.Errorf("%s: %d READs at a time: target in %v", m.name, n, p.b.q.State())
			}
		}
	}
}

// TestWeakReadsMayOvertakeWrites: a READ of weak mode may run before WRITEs posted ahead of it
// (RDMA over Falcon §6.7), and never before those that have completed. In strong mode it sees both.
// (DEV-951)
func TestWeakReadsMayOvertakeWrites(t *testing.T) {
	for _, m := range modes[:2] {
		early := false
		for seed := range uint64(20) {
			imp := sim.Impairment{Delay: 20e3, Jitter: 100e3, Loss: 0.1, Reorder: 0.2, ReorderDelay: 200e3}
			p := newPair(t, m.ordered, 4096, worldConfig{seed: seed, net: imp}, qpConfig{ordering: m.ordering})
			for value := uint64(1); value <= 20; value++ {
				binary.LittleEndian.PutUint64(p.ma.bytes(), value)
				p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
				wait := value%2 == 0
				if wait {
					success(t, p.a.send.wait(1))
				}
				p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(8, 8))
				n := 2
				if wait {
					n = 1
				}
				success(t, p.a.send.wait(n))
				got := binary.LittleEndian.Uint64(p.ma.bytes()[8:])
				switch {
				case got == value:
				case wait || m.ordered || got != value-1:
					t.Fatalf("%s, seed %d: a READ saw %d, want %d", m.name, seed, got, value)
				default:
					early = true
				}
			}
		}
		if early == m.ordered {
			t.Errorf("%s: READs ran before WRITEs ahead of them: %t", m.name, early)
		}
	}
}

// TestAFenceWaitsForReads: a WRITE waits until the READ before it is done, and no longer.
func TestAFenceWaitsForReads(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		p.cut(1, true) // nothing comes back
		p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		x := p.remote(abi.OpWrite, 100)
		if fence {
			x.Flags |= abi.SendFence
		}
		fill(p.ma.bytes()[100:108], 1)
		p.a.post(x, p.ma.sge(100, 8))
		p.settle(1e7)
		if arrived := p.mb.bytes()[100] != 0 || p.mb.bytes()[101] != 0; arrived == fence {
			t.Fatalf("fence %t: WRITE arrived %t while the READ was open", fence, arrived)
		}
		p.cut(1, false)
		success(t, p.a.send.wait(2))
		if p.mb.bytes()[100] != p.ma.bytes()[100] {
			t.Fatal("WRITE lost")
		}
	}
}

// TestAReadMayLeaveOutThePad: a peer that does not count the pad of the response in Request Length
// (24 + N) gets exactly what it asked for. Any other length is refused.
func TestAReadMayLeaveOutThePad(t *testing.T) {
	for _, c := range []struct {
		n, asked, want int
	}{{5, 24 + 8, 24 + 8}, {5, 24 + 5, 24 + 5}, {8, 24 + 8, 24 + 8}, {5, 24 + 6, 24}, {5, 24 + 4, 24}} {
		raw := &lengthULP{n: uint32(c.n)}
		w := newWorld(t, worldConfig{peer: raw})
		h := w.hosts[1]
		pd, _ := h.fn.AllocPD()
		m := h.register(pd, 4096, allAccess)
		fill(m.bytes(), 3)
		b := h.createQP(pd, qpConfig{cie: true})
		raw.qpn, raw.va, raw.key = b.number, m.addr, m.key
		open := func(fe *falcon.Engine, local, remote falcon.CID) *falcon.Conn {
			conn, err := fe.Open(w.now, falcon.ConnConfig{
				LocalCID: local, RemoteCID: remote, LocalFunction: local, RemoteFunction: remote,
				Protocol: falconwire.ProtocolRDMA, MTU: 2048, Ordered: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		peer := open(w.hosts[0].fe, 1, 2)
		ok(t, b.q.Connect(w.now, h.rof().Over(open(h.fe, 2, 1)), 9, pathMTU, [16]byte{}))
		if err := peer.Pull(w.now, 0, wire.Opcodes[ib.ReadRequest].Len, c.asked); err != nil {
			t.Fatal(err)
		}
		w.settle(1e6)
		if len(raw.got) != c.want || c.want > 24 && string(raw.got[24:24+c.n]) != string(m.bytes()[:c.n]) {
			t.Errorf("%d bytes, Request Length %d: a response of %d bytes, want %d", c.n, c.asked, len(raw.got), c.want)
		}
	}
}

// lengthULP asks for n bytes and keeps the response.
type lengthULP struct {
	qpn, key, n uint32
	va          uint64
	got         []byte
}

func (u *lengthULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	h := wire.Headers{
		RBTH:     wire.RBTH{Opcode: ib.ReadRequest, DestQP: u.qpn, SN: 1},
		Extended: ib.Extended{RETH: ib.RETH{VA: u.va, RKey: u.key, Length: u.n}, SETH: ib.SETH{RMSN: 1}},
	}
	return len(h.Append(dst[:0])), nil
}

func (u *lengthULP) HandleEvent(_ falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPullDone {
		u.got = append([]byte(nil), ev.Data...)
	}
}

// TestAFloodOfReadsIsAnsweredInTheEnd lets a peer ask for more READs at once than a QP serves, by
// never acknowledging responses. They are deferred, and all are answered in the end.
func TestAFloodOfReadsIsAnsweredInTheEnd(t *testing.T) {
	raw := &readsULP{}
	w := newWorld(t, worldConfig{peer: raw})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 4096, allAccess)
	b := h.createQP(pd, qpConfig{})
	raw.qpn, raw.va, raw.key = b.number, m.addr, m.key
	open := func(fe *falcon.Engine, local, remote falcon.CID, lf, rf uint32) *falcon.Conn {
		c, err := fe.Open(w.now, falcon.ConnConfig{
			LocalCID: local, RemoteCID: remote, LocalFunction: lf, RemoteFunction: rf,
			Protocol: falconwire.ProtocolRDMA, MTU: 2048,
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	attacker := open(w.hosts[0].fe, 1, 2, 1, 2)
	conn := serves255{h.rof().Over(open(h.fe, 2, 1, 2, 1))} // the attacker was told that it may
	ok(t, b.q.Connect(w.now, conn, 9, pathMTU, [16]byte{}))
	dropping := true
	w.sim.Filter = func(from int, p []byte) sim.Verdict {
		typ, _ := falconwire.Peek(p)
		return sim.Verdict{Drop: dropping && from == 1 && typ == falconwire.TypePullData}
	}
	const n = 200
	for i := range n {
		for attacker.Pull(w.now, uint64(i), wire.Opcodes[ib.ReadRequest].Len, wire.PullLength(ib.ReadRequest, 8)) != nil {
			w.settle(1e6)
		}
		w.settle(1e5)
	}
	w.settle(5e6)
	if s := h.fn.Stats(); s.PullsDeferred == 0 || s.PullsRx > 128 {
		t.Fatalf("%d READs taken, %d told to wait", s.PullsRx, s.PullsDeferred)
	}
	dropping = false
	w.run(20e9, func() bool { return raw.done == n })
	if raw.bad != 0 || b.q.State() != abi.QPStateRTS {
		t.Fatalf("%d READs failed, QP in %v", raw.bad, b.q.State())
	}
}

// readsULP asks for 8 bytes with every pull; the tag is the sequence number less one.
type readsULP struct {
	qpn, key  uint32
	va        uint64
	done, bad int
}

func (u *readsULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	h := wire.Headers{
		RBTH:     wire.RBTH{Opcode: ib.ReadRequest, DestQP: u.qpn, SN: uint32(tag) + 1},
		Extended: ib.Extended{RETH: ib.RETH{VA: u.va, RKey: u.key, Length: 8}, SETH: ib.SETH{RMSN: uint32(tag) + 1}},
	}
	return len(h.Append(dst[:0])), nil
}

func (u *readsULP) HandleEvent(_ falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPullDone {
		u.done++
		if ev.Code != falcon.CmplAck || len(ev.Data) != 32 {
			u.bad++
		}
	}
}

// serves255 lets the peer have more READs unanswered than a queue pair allows.
type serves255 struct{ transport.Conn }

func (c serves255) Attach(t *transport.Terms) (segment int, ok bool) {
	t.Serves = 255
	return c.Conn.Attach(t)
}
