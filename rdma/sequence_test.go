package rdma

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/google/go-cmp/cmp"
)

// TestNumbersOnTheWire holds the numbers on the wire: SN counts every request packet from 1 (RDMA
// over Falcon §8.2); RMSN counts messages that take a receive and, apart from them, READ and atomic
// packets, both from 1 (§8.3.2); the solicited bit is in the last packet of a message that takes a
// receive, whatever is posted with SendSolicited; offsets and addresses are those of the segment;
// responses echo SN and sink.
func TestNumbersOnTheWire(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.sim.Tracing = true
	for i := range 3 {
		p.b.receive(uint64(i), p.mb.sge(4096, 4096))
	}
	post := func(x abi.SendWQE, sges ...abi.SGE) {
		x.Flags = abi.SendSignaled | abi.SendSolicited
		p.a.post(x, sges...)
		success(t, p.a.send.wait(1))
	}
	post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 2500))
	post(p.remote(abi.OpWrite, 8), p.ma.sge(0, 1025))
	x := p.remote(abi.OpWriteImm, 16)
	x.Imm = 77
	post(x, p.ma.sge(0, 3))
	post(p.remote(abi.OpRead, 24), p.ma.sge(0, 1000), p.ma.sge(2000, 1500))
	x = p.remote(abi.OpCmpSwap, 32)
	x.CompareAdd, x.Swap = 5, 6
	post(x, p.ma.sge(40, 8))
	x.Opcode = abi.OpFetchAdd
	post(x, p.ma.sge(40, 8))
	post(abi.SendWQE{Opcode: abi.OpSendInv, Imm: p.mb.key}, p.ma.sge(0, 1))

	va, key, dqp := p.mb.addr, p.mb.key, p.b.number
	base := func(op ib.Opcode, sn uint32, pad uint8, se bool) wire.RBTH {
		return wire.RBTH{Opcode: op, SN: sn, Pad: pad, DestQP: dqp, Solicited: se}
	}
	sink := func(off uint64) ib.STETH { return ib.STETH{VA: p.ma.addr + off, LKey: p.ma.key} }
	want := []wire.Headers{
		{RBTH: base(ib.SendFirst, 1, 0, false), Extended: ib.Extended{SETH: ib.SETH{RMSN: 1}}},
		{RBTH: base(ib.SendMiddle, 2, 0, false), Extended: ib.Extended{SETH: ib.SETH{RMSN: 1}, OETH: ib.OETH{Offset: 1024}}},
		{RBTH: base(ib.SendLast, 3, 0, true), Extended: ib.Extended{SETH: ib.SETH{RMSN: 1}, OETH: ib.OETH{Offset: 2048}}},
		{RBTH: base(ib.WriteFirst, 4, 0, false), Extended: ib.Extended{RETH: ib.RETH{VA: va + 8, RKey: key, Length: 1024}}},
		{RBTH: base(ib.WriteLast, 5, 3, false), Extended: ib.Extended{RETH: ib.RETH{VA: va + 8 + 1024, RKey: key, Length: 1}}},
		{RBTH: base(ib.WriteOnlyImm, 6, 1, true), Extended: ib.Extended{RETH: ib.RETH{VA: va + 16, RKey: key, Length: 3}, SETH: ib.SETH{RMSN: 2}, Imm: ib.ImmDt{Data: 77}}},
		{RBTH: base(ib.ReadRequest, 7, 0, false), Extended: ib.Extended{RETH: ib.RETH{VA: va + 24, RKey: key, Length: 1000}, SETH: ib.SETH{RMSN: 1}, STETH: sink(0)}},
		{RBTH: base(ib.ReadRequest, 8, 0, false), Extended: ib.Extended{RETH: ib.RETH{VA: va + 1024, RKey: key, Length: 1024}, SETH: ib.SETH{RMSN: 2}, STETH: sink(2000)}},
		{RBTH: base(ib.ReadRequest, 9, 0, false), Extended: ib.Extended{RETH: ib.RETH{VA: va + 2048, RKey: key, Length: 476}, SETH: ib.SETH{RMSN: 3}, STETH: sink(3024)}},
		{RBTH: base(ib.CmpSwap, 10, 0, false), Extended: ib.Extended{Atomic: ib.AtomicETH{VA: va + 32, RKey: key, SwapAdd: 6, Compare: 5}, SETH: ib.SETH{RMSN: 4}, STETH: sink(40)}},
		{RBTH: base(ib.FetchAdd, 11, 0, false), Extended: ib.Extended{Atomic: ib.AtomicETH{VA: va + 32, RKey: key, SwapAdd: 5}, SETH: ib.SETH{RMSN: 5}, STETH: sink(40)}},
		{RBTH: base(ib.SendOnlyInv, 12, 3, true), Extended: ib.Extended{SETH: ib.SETH{RMSN: 3}, Inv: ib.IETH{RKey: key}}},
	}
	var got, responses []wire.Headers
	for _, s := range p.sim.Trace {
		var h wire.Headers
		n := map[falconwire.PacketType]int{
			falconwire.TypePushData: falconwire.PushDataLen, falconwire.TypePullRequest: falconwire.PullRequestLen,
			falconwire.TypePullData: falconwire.PullDataLen,
		}[s.Type]
		if n == 0 {
			continue
		}
		if _, err := h.Parse(s.Packet[n:]); err != nil {
			t.Fatal(err)
		}
		if s.From == 0 {
			got = append(got, h)
		} else {
			responses = append(responses, h)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if len(responses) != 5 {
		t.Fatalf("%d responses", len(responses))
	}
	for i, r := range responses {
		q := want[6+i]
		if r.RBTH.SN != q.RBTH.SN || r.STETH != q.STETH || r.RBTH.DestQP != p.a.number || r.RBTH.CE || r.RBTH.Syndrome != 0 {
			t.Errorf("response %d: %+v to %+v", i, r, q)
		}
	}
}

// TestImmediateDataIsCarriedAsTheEntryHasIt: bytes 11 22 33 44 of a work request's Imm are the
// bytes 11 22 33 44 of ImmDt (RDMA over Falcon §8.3.5, DRV-101), and those of the peer's
// completion. The key of a SEND with invalidate is a number: big-endian on the wire.
func TestImmediateDataIsCarriedAsTheEntryHasIt(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.sim.Tracing = true
	imm := []byte{0x11, 0x22, 0x33, 0x44}
	send := abi.SendWQE{Opcode: abi.OpSendImm, Imm: binary.LittleEndian.Uint32(imm)}
	write := p.remote(abi.OpWriteImm, 16)
	write.Imm = send.Imm
	for i, x := range []abi.SendWQE{send, write, {Opcode: abi.OpSendInv, Imm: p.mb.key}} {
		p.b.receive(uint64(i), p.mb.sge(4096, 4096))
		x.Flags = abi.SendSignaled
		p.a.post(x, p.ma.sge(0, 4))
		success(t, p.a.send.wait(1))
		b := make([]byte, abi.CQESize)
		e := p.b.recv.wait(1)[0]
		e.Marshal(b)
		got := b[12:][:4]
		if x.Opcode != abi.OpSendInv && !bytes.Equal(got, imm) {
			t.Errorf("%s: the completion has %x, want %x", x.Opcode, got, imm)
		}
	}
	key := binary.BigEndian.AppendUint32(nil, p.mb.key)
	var got, want [][]byte
	for _, s := range p.sim.Trace {
		if s.Type == falconwire.TypePushData {
			packet := s.Packet[falconwire.PushDataLen:]
			got = append(got, packet[len(packet)-8:len(packet)-4]) // in front of the data
		}
	}
	if want = [][]byte{imm, imm, key}; !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("on the wire %x, want %x", got, want)
	}
}

// oneByteWrites is a peer that sends one-byte WRITEs; the tag is the sequence number.
type oneByteWrites struct {
	qpn, key uint32
	va       uint64
	codes    []falcon.Completion
	ulp      []uint8
}

func (u *oneByteWrites) Fill(_ *falcon.Conn, _ falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	h := wire.Headers{
		RBTH: wire.RBTH{Opcode: ib.WriteOnlyImm, DestQP: u.qpn, SN: uint32(tag), Pad: 3},
		Extended: ib.Extended{
			RETH: ib.RETH{VA: u.va + tag, RKey: u.key, Length: 1},
			SETH: ib.SETH{RMSN: uint32(tag)},
			Imm:  ib.ImmDt{Data: uint32(tag)},
		},
	}
	n := len(h.Append(dst[:0]))
	dst[n] = byte(tag)
	return n + 4, nil
}

func (u *oneByteWrites) HandleEvent(_ falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPushDone {
		u.codes, u.ulp = append(u.codes, ev.Code), append(u.ulp, ev.ULPCode)
	}
}

// TestASequenceGapIsAnErrorOnlyInOrder sends SN 2 before SN 1: an error on an ordered connection
// (RDMA over Falcon §8.2), placed at once and completed in order on an unordered one.
func TestASequenceGapIsAnErrorOnlyInOrder(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		raw := &oneByteWrites{}
		w := newWorld(t, worldConfig{peer: raw})
		h := w.hosts[1]
		pd, _ := h.fn.AllocPD()
		m := h.register(pd, 4096, allAccess)
		b := h.createQP(pd, qpConfig{})
		raw.qpn, raw.va, raw.key = b.number, m.addr, m.key
		peer := w.attack(b, ordered)
		for range 3 {
			b.receive(1)
		}
		send := func(sn uint64) {
			t.Helper()
			if err := peer.Push(w.now, sn, wire.PushLength(ib.WriteOnlyImm, 1)); err != nil {
				t.Fatal(err)
			}
			w.settle(1e6)
		}
		send(2)
		if ordered {
			if len(raw.codes) != 1 || raw.codes[0] != falcon.CmplTargetNackNRE || raw.ulp[0] != 0x60 || b.q.State() != abi.QPStateErr {
				t.Fatalf("answers %v %#x, QP in %v", raw.codes, raw.ulp, b.q.State())
			}
			if m.bytes()[2] != 0 {
				t.Fatal("data of a packet out of sequence was placed")
			}
			return
		}
		if m.bytes()[2] != 2 {
			t.Fatal("data was not placed as it came")
		}
		if _, ok := b.recv.poll(); ok {
			t.Fatal("completion before the message ahead of it")
		}
		send(1)
		for i, c := range b.recv.wait(2) {
			if c.Status != abi.WCSuccess || c.Imm != uint32(i+1) {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
		send(3 + 1024) // too far ahead: told to come again
		if _, ok := b.recv.poll(); ok || h.fn.Stats().RNRTx == 0 || b.q.State() != abi.QPStateRTS {
			t.Fatal("a packet far ahead was taken")
		}
		send(1) // seen
		if b.q.State() != abi.QPStateErr {
			t.Fatal("a sequence number was taken twice")
		}
	})
}
