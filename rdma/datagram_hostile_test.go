package rdma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// TestDatagramsMatchTheModel sends random datagrams between several QPs of both hosts over bad
// links. Each arrives at most once, unchanged and at the right place, and completions come once and
// in order. Over a link without losses all datagrams arrive.
func TestDatagramsMatchTheModel(t *testing.T) {
	overAll(t, func(t *testing.T) {
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 3))
			imp := sim.Impairment{Delay: 20e3}
			if seed%2 == 1 && over != byRoCE { // which is as good as its network
				imp = sim.Impairment{Delay: 20e3, Jitter: 40e3, Loss: 0.03, Duplicate: 0.03, Reorder: 0.1, ReorderDelay: 200e3}
			}
			p := newUDPair(t, worldConfig{net: imp, seed: seed, arena: 32 << 20}, qpConfig{log2: 8})
			qps := [2][]*qp{{p.qps[0]}, {p.qps[1]}}
			for i, h := range p.hosts {
				for range 2 {
					qps[i] = append(qps[i], h.createUD(p.pd[i], qpConfig{log2: 8}))
				}
				for j, q := range qps[i] {
					for k := range 100 {
						q.receive(uint64(k), p.mem[i].sge(j<<18+k*2048, 2048))
					}
				}
			}
			type datagram struct {
				from, to *qp
				n        int
			}
			sent := map[uint32]datagram{}
			for id := range uint32(120) {
				i := r.IntN(2)
				from, to := qps[i][r.IntN(3)], qps[1-i][r.IntN(3)]
				n := 4 + r.IntN(pathMTU-3)
				sent[id] = datagram{from, to, n}
				data := make([]byte, n)
				fill(data, uint64(id))
				binary.BigEndian.PutUint32(data, id)
				off := 900<<10 + int(id)*1024
				copy(p.mem[i].bytes()[off:], data)
				x := p.to(i, abi.OpSendImm)
				x.WRID, x.RemoteQPN, x.Imm = uint64(id), to.number, id
				from.post(x, p.mem[i].sge(off, n))
			}
			for i := range qps {
				for j, q := range qps[i] {
					var last int64 = -1
					want, expected := 0, 0
					for _, d := range sent {
						if d.from == q {
							want++
						}
						if d.to == q {
							expected++
						}
					}
					for _, c := range q.send.wait(want) {
						if c.Status != abi.WCSuccess || int64(c.WRID) <= last {
							t.Fatalf("seed %d: completion %+v after %d", seed, c, last)
						}
						last = int64(c.WRID)
					}
					for _, c := range q.recv.wait(expected) {
						d, ok := sent[c.Imm]
						data := make([]byte, d.n)
						fill(data, uint64(c.Imm))
						binary.BigEndian.PutUint32(data, c.Imm)
						at := j<<18 + int(c.WRID)*2048 + 40
						if !ok || d.to != q || c.SrcQP != d.from.number || int(c.ByteLen) != d.n+40 || !bytes.Equal(p.mem[i].bytes()[at:at+d.n], data) {
							t.Fatalf("seed %d: receive %+v of %+v", seed, c, d)
						}
						delete(sent, c.Imm)
					}
				}
			}
			p.settle(1e9)
			for i := range qps {
				for _, q := range qps[i] {
					if c, ok := q.recv.poll(); ok {
						t.Fatalf("seed %d: one too many: %+v", seed, c)
					}
				}
			}
		}
	})
}

// TestNoiseOnALinkChangesOnlyCounters lets a peer with a valid link send everything except valid
// datagrams: READs, WRITEs, SENDs, noise. Only counters of the function change, and requests of
// connected services are refused as belonging to another connection (RDMA over Falcon §6.9).
func TestNoiseOnALinkChangesOnlyCounters(t *testing.T) {
	raw := &rawULP{}
	p := newUDPair(t, worldConfig{peer: raw}, qpConfig{})
	p.refuse = true
	h := p.hosts[1]
	l := h.fn.Links.Accept(rof.LinkKey{GID: p.hosts[0].gid()}, 1)
	cfg := falcon.ConnConfig{LocalCID: 2, RemoteCID: 1, LocalFunction: 2, RemoteFunction: 1, Protocol: falconwire.ProtocolRDMA, MTU: pathMTU + 56}
	c, err := h.fe.Open(p.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.Open(p.now, c, h.gid())
	atk := p.sim.Nodes[0].Engine
	cfg.LocalCID, cfg.RemoteCID, cfg.LocalFunction, cfg.RemoteFunction = 1, 2, 1, 2
	from, err := atk.Open(p.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := p.qps[1]
	b.receive(1, p.mem[1].sge(0, 2048))
	before := bytes.Clone(p.mem[1].bytes())
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		hd := wire.Headers{RBTH: wire.RBTH{Opcode: ib.Opcode(r.IntN(256)), DestQP: b.number, SN: uint32(i), Pad: uint8(r.IntN(4))}}
		if i%2 == 0 {
			hd.RBTH.Opcode = ib.UD | ib.SendOnly + ib.Opcode(r.IntN(2))
		}
		hd.RETH = ib.RETH{VA: p.mem[1].addr, RKey: p.mem[1].key, Length: 8}
		hd.Datagram = ib.DETH{QKey: uint32(r.IntN(2)), SourceQP: 3}
		packet := hd.Append(nil)
		switch r.IntN(3) {
		case 0:
			packet = packet[:r.IntN(len(packet)+1)]
		case 1:
			packet = append(packet, make([]byte, r.IntN(900))...)
		}
		raw.send = packet
		if r.IntN(4) == 0 && len(packet) <= falcon.MaxPullHeader {
			err = from.Pull(p.now, 1, len(packet), 8)
		} else {
			err = from.Push(p.now, 1, len(packet))
		}
		if err != nil {
			t.Fatal(err)
		}
		p.settle(100e3)
	}
	p.settle(1e9)
	if !bytes.Equal(before, p.mem[1].bytes()) {
		t.Error("memory changed")
	}
	if len(h.async) != 0 || b.q.State() != abi.QPStateRTS {
		t.Errorf("events %+v, QP in %v", h.async, b.q.State())
	}
	s := h.fn.Stats()
	if s.CIDMismatches == 0 || s.DatagramsLost == 0 || s.BadQKeys == 0 {
		t.Errorf("%+v", s)
	}
	if _, got := b.recv.poll(); got {
		t.Error("something was received")
	}
}

// TestSequenceNumbersOfDatagramsOnlyRise: on an ordered link the sequence numbers of a peer only
// rise (RDMA over Falcon §8.2). A datagram with an older number is lost. A missing number belongs
// to a datagram that its sender gave up.
func TestSequenceNumbersOfDatagramsOnlyRise(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		raw := &rawULP{}
		p := newUDPair(t, worldConfig{peer: raw}, qpConfig{})
		p.refuse = true
		h, b := p.hosts[1], p.qps[1]
		l := h.fn.Links.Accept(rof.LinkKey{GID: p.hosts[0].gid(), Ordered: ordered}, 1)
		cfg := falcon.ConnConfig{
			LocalCID: 2, RemoteCID: 1, LocalFunction: 2, RemoteFunction: 1, Protocol: falconwire.ProtocolRDMA, MTU: pathMTU + 56, Ordered: ordered,
		}
		c, err := h.fe.Open(p.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Open(p.now, c, h.gid())
		cfg.LocalCID, cfg.RemoteCID, cfg.LocalFunction, cfg.RemoteFunction = 1, 2, 1, 2
		from, err := p.sim.Nodes[0].Engine.Open(p.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for i, sn := range []uint32{1, 2, 2, 1, 5, 4, 6, 0} {
			b.receive(uint64(i), p.mem[1].sge(0, 2048))
			hd := wire.Headers{RBTH: wire.RBTH{Opcode: ib.UD | ib.SendOnlyImm, DestQP: b.number, SN: sn}, Extended: ib.Extended{Datagram: ib.DETH{QKey: testQKey, SourceQP: 3}}}
			hd.Imm.Data = sn
			raw.send = hd.Append(nil)
			if err := from.Push(p.now, 1, len(raw.send)); err != nil {
				t.Fatal(err)
			}
			p.settle(1e6)
			if r, any := b.recv.poll(); any {
				got = append(got, r.Imm)
			}
		}
		want := []uint32{1, 2, 2, 1, 5, 4, 6, 0}
		if ordered {
			want = []uint32{1, 2, 5, 6}
		}
		if !slices.Equal(got, want) {
			t.Errorf("ordered %t: delivered %d, want %d", ordered, got, want)
		}
	}
}

// TestRandomEntriesHarmNobody lets a guest post entries of random bytes, with handles that exist or
// do not. Each completes or is flushed, the function survives, memory outside the peer's receives
// does not change, and nothing is leaked.
func TestRandomEntriesHarmNobody(t *testing.T) {
	overAll(t, func(t *testing.T) {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 11))
			p := newUDPair(t, worldConfig{seed: seed}, qpConfig{log2: 8, sigAll: true})
			a, b := p.qps[0], p.qps[1]
			guard := bytes.Clone(p.mem[1].bytes()[512<<10:])
			for i := range 100 {
				b.receive(uint64(i), p.mem[1].sge(i*2048, 2048))
			}
			for range 80 {
				var entry [512]byte
				for i := range entry {
					entry[i] = byte(r.Uint32())
				}
				x := abi.SendWQE{
					Opcode: abi.Opcode(r.IntN(12)), Flags: uint8(r.IntN(16)), NumSGE: uint8(r.IntN(6)), InlineLen: uint32(r.IntN(300)),
					AHN: []uint32{p.ah[0], p.ah[0], r.Uint32(), 0}[r.IntN(4)], RemoteQPN: []uint32{b.number, r.Uint32()}[r.IntN(2)],
					RemoteQKey: []uint32{testQKey, r.Uint32()}[r.IntN(2)],
				}
				x.Marshal(entry[:])
				for i := range 4 {
					s := p.mem[0].sge(r.IntN(1<<20), r.IntN(6000))
					if r.IntN(8) == 0 {
						s.LKey = r.Uint32()
					}
					s.Marshal(entry[abi.SendWQEHeader+i*abi.SGESize:])
				}
				if err := a.sq.Push(entry[:]); err != nil {
					t.Fatal(err)
				}
				if _, _, err := a.sq.Publish(); err != nil {
					t.Fatal(err)
				}
				a.ring()
				a.send.wait(1)
				if a.q.State() == abi.QPStateSQE {
					a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
				}
			}
			p.settle(1e9)
			for i, h := range p.hosts {
				if len(h.async) != 0 || h.credits.InUse() != (credit.Cost{}) {
					t.Fatalf("seed %d, host %d: events %+v, credits %v", seed, i, h.async, h.credits.InUse())
				}
			}
			if a.q.State() != abi.QPStateRTS || b.q.State() != abi.QPStateRTS || !bytes.Equal(guard, p.mem[1].bytes()[512<<10:]) {
				t.Fatalf("seed %d: QPs in %v and %v", seed, a.q.State(), b.q.State())
			}
		}
	})
}
