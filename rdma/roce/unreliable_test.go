package roce_test

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// listener is a target that notes the messages that came, by the last packet's PSN.
type listener struct {
	target
	came []uint32
	size []uint64
}

func (l *listener) Complete(_ transport.Time, p *transport.Packet, n uint64, _ abi.WCStatus) {
	l.came, l.size = append(l.came, p.ID), append(l.size, n)
}

// TestAnUnreliableMessageArrivesWholeOrNotAtAll checks how a responder handles packets by their PSNs. Nothing is answered.
func TestAnUnreliableMessageArrivesWholeOrNotAtAll(t *testing.T) {
	const first, middle, last, only = ib.SendFirst, ib.SendMiddle, ib.SendLast, ib.SendOnly
	type packet struct {
		op  ib.Opcode
		psn int // behind the first expected
		n   int
	}
	for _, c := range []struct {
		name    string
		packets []packet
		want    []uint32 // PSNs of the last packets of messages that arrive
	}{
		{"in order", []packet{{first, 0, 256}, {middle, 1, 256}, {last, 2, 7}, {only, 3, 256}}, []uint32{2, 3}},
		{"a middle is lost", []packet{{first, 0, 256}, {middle, 2, 256}, {last, 3, 7}, {only, 4, 0}}, []uint32{4}},
		{"a first is lost", []packet{{middle, 1, 256}, {last, 2, 7}, {only, 3, 1}}, []uint32{3}},
		{"a last is lost", []packet{{first, 0, 256}, {first, 2, 256}, {last, 3, 7}}, []uint32{3}},
		{"a message never ends", []packet{{first, 0, 256}, {first, 1, 256}, {last, 2, 7}}, []uint32{2}},
		{"many are lost", []packet{{only, 100_000, 3}, {only, 100_001, 3}}, []uint32{100_000, 100_001}},
		{"a packet is repeated", []packet{{only, 0, 3}, {only, 0, 3}, {only, 1, 3}, {only, 0, 3}}, []uint32{0, 1}},
		{"a packet of a message is repeated", []packet{{first, 0, 256}, {first, 0, 256}, {middle, 1, 256}, {middle, 1, 256}, {last, 2, 7}}, []uint32{2}},
		{"an old packet", []packet{{only, 5, 3}, {only, 3, 3}, {only, 6, 3}}, []uint32{5, 6}},
		{"an old packet within a message", []packet{{only, 5, 3}, {first, 6, 256}, {only, 4, 3}, {last, 7, 9}}, []uint32{5, 7}},
		{"an old packet, nearly one of a new beginning", []packet{{only, 300, 3}, {only, 301 - 255, 3}, {only, 301, 3}}, []uint32{300, 301}},
		{"just far enough for a new beginning", []packet{{only, 300, 3}, {only, 301 - 256, 3}, {only, 301 - 255, 3}}, []uint32{300, 45, 46}},
		{"the peer begins anew", []packet{{only, 5000, 3}, {first, 0, 256}, {last, 1, 9}}, []uint32{5000, 1}},
		{"a WRITE within a SEND", []packet{{first, 0, 256}, {ib.WriteMiddle, 1, 256}, {last, 2, 7}, {only, 3, 3}}, []uint32{3}},
		{"a middle that is too short", []packet{{first, 0, 256}, {middle, 1, 255}, {last, 2, 7}, {only, 3, 3}}, []uint32{3}},
		{"a last that is too long", []packet{{first, 0, 256}, {last, 1, 300}, {only, 2, 3}}, []uint32{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(1, false, 1500, sim.Impairment{})
			own, e := w.connect(0), &listener{target: target{serving: true}}
			attachUC(t, own, e, 17, 18)
			way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
			for _, x := range c.packets {
				h := wire.Headers{BTH: wire.BTH{
					Opcode: ib.UC | x.op, DestQP: 17, PSN: wire.PSN(100).Add(x.psn), PKey: wire.DefaultPKey, AckReq: true, Pad: uint8(ib.PadLen(x.n)),
				}}
				packet := h.Append(make([]byte, way.HeaderLen()))
				packet = append(packet, make([]byte, x.n+ib.PadLen(x.n)+wire.ICRCLen)...)
				way.Put(packet)
				w.ports[0].Receive(1e9, packet)
				if w.engines[0].Run(1e9); w.engines[0].Waiting() {
					t.Fatalf("PSN %d is answered", x.psn)
				}
			}
			for i := range e.came {
				e.came[i] -= 100
			}
			if !slices.Equal(e.came, c.want) {
				t.Errorf("messages that end with %d arrived, want %d", e.came, c.want)
			}
		})
	}
}

// TestUnreliableConnectionsRefuseOtherServices: an unreliable connection takes no opcode of another service, masked
// atomics over XRC among them, whose prefix is that of its own with the manufacturer's bits.
func TestUnreliableConnectionsRefuseOtherServices(t *testing.T) {
	for _, op := range []ib.Opcode{
		wire.Opcode(ib.XRC, ib.MaskedCmpSwap), wire.Opcode(ib.XRC, ib.MaskedFetchAdd), wire.Opcode(ib.RC, ib.MaskedFetchAdd), ib.SendOnly, ib.XRC | ib.WriteOnly,
	} {
		w := newWorld(1, false, 1500, sim.Impairment{})
		own, e := w.connect(0), &listener{target: target{serving: true}}
		attachUC(t, own, e, 17, 18)
		way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
		h := wire.Headers{BTH: wire.BTH{Opcode: op, DestQP: 17, PSN: 100, PKey: wire.DefaultPKey}}
		packet := append(h.Append(make([]byte, way.HeaderLen())), make([]byte, wire.ICRCLen)...)
		way.Put(packet)
		w.ports[0].Receive(1e9, packet)
		if s := w.ports[0].Stats(); s.Strange != 1 || s.Received != 0 || e.placed != 0 {
			t.Errorf("%v: %+v, %d packets placed", op, s, e.placed)
		}
	}
}

// TestUnreliableLossesAreNotCounted: what an unreliable connection took is counted, what it lost is not.
func TestUnreliableLossesAreNotCounted(t *testing.T) {
	e := &scripted{target: target{serving: true}}
	p := newPeer(t, e, func(x *transport.Terms) { x.Unreliable = true })
	for _, x := range []struct {
		op     ib.Opcode
		psn, n int
	}{{ib.SendFirst, 100, segment}, {ib.SendLast, 101, 44}, {ib.SendLast, 102, 7}, {ib.WriteOnly, 103, 8}} {
		p.asks(ib.UC|x.op, x.psn, x.n)
	}
	e.verdict.Refusal = transport.NotReady
	p.asks(ib.UC|ib.SendOnly, 104, 8)
	if want := (transport.Counters{PushesRx: 3, BytesRx: 308}); p.acct.Counters != want || p.ports[0].Stats().Received != 5 {
		t.Errorf("%+v, want %+v", p.acct.Counters, want)
	}
	if !slices.Equal(e.lengths, []uint64{300}) || e.packets[1].Offset != segment {
		t.Errorf("messages of %d bytes, packets %+v", e.lengths, e.packets)
	}
	p.posts(abi.OpWrite, 300)
	p.allSent()
	p.allSent()
	if want := (transport.Counters{PushesRx: 3, BytesRx: 308, PushesTx: 2, BytesTx: 300}); p.acct.Counters != want || e.done != 2 {
		t.Errorf("%+v, want %+v; %d packets done", p.acct.Counters, want, e.done)
	}
}

// TestUnreliableNoAllocations sends WRITEs that nobody answers, to an end that takes them.
func TestUnreliableNoAllocations(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1000})
	a, b, at := w.connect(0), w.connect(1), &target{serving: true}
	attachUC(t, a, &target{serving: true}, 17, 18)
	attachUC(t, b, at, 18, 17)
	now := transport.Time(1e9)
	var r transport.Request
	round := func() {
		r = transport.Request{Length: 2000, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
		for !r.Issued {
			if _, err := a.Issue(now, &r); err != nil {
				t.Fatal(err)
			}
		}
		for before := at.placed; r.Pending > 0 || at.placed < before+8; {
			now = max(now, w.step(now))
		}
	}
	for range 300 {
		round()
	}
	if n := testing.AllocsPerRun(300, round); n != 0 {
		t.Errorf("%v allocations per WRITE, want 0", n)
	}
}
