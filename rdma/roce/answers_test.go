package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestRepeatedRequestsDoNotCrowdOutNewOnes: a peer repeats the maximum of READs or atomics, then gets the late answers, and
// asks for as many new ones. All of that arrives at once, and nothing is refused.
func TestRepeatedRequestsDoNotCrowdOutNewOnes(t *testing.T) {
	const most = 16
	for name, op := range map[string]ib.Opcode{"READ": ib.ReadRequest, "atomic": ib.FetchAdd} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, false, 1500, sim.Impairment{})
			own := w.connect(0)
			attach(t, own, &target{serving: true}, 17, 18)
			way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
			ask := func(from int) {
				for i := from; i < from+most; i++ {
					h := wire.Headers{
						BTH:      wire.BTH{Opcode: op, DestQP: 17, PSN: wire.PSN(100 + i), PKey: wire.DefaultPKey, AckReq: true},
						Extended: ib.Extended{RETH: ib.RETH{RKey: 7, Length: 8}, Atomic: ib.AtomicETH{RKey: 7}},
					}
					packet := append(h.Append(make([]byte, way.HeaderLen())), make([]byte, wire.ICRCLen)...)
					way.Put(packet)
					w.ports[0].Receive(1e9, packet)
				}
			}
			answers := func() (got int) {
				for n, _ := w.engines[0].Transmit(1e9, w.packet[:]); n > 0; n, _ = w.engines[0].Transmit(1e9, w.packet[:]) {
					got++
				}
				return got
			}
			ask(0)
			if n := answers(); n != most {
				t.Fatalf("%d answers, want %d", n, most)
			}
			ask(0)
			ask(most)
			if n, s := answers(), w.ports[0].Stats(); n != 2*most || s.Refused != 0 {
				t.Errorf("%d answers, %d refused, want %d and 0", n, s.Refused, 2*most)
			}
			ask(2 * most)
			ask(3 * most)
			if answers(); w.ports[0].Stats().Refused != 1 {
				t.Error("more than was agreed was not refused")
			}
			own.Close(transport.Time(2e9))
		})
	}
}

// TestARepeatedReadIsAnsweredWithinBounds: a repeated READ is answered again if all packets of its answer were asked
// for before, and while not too many wait. Otherwise it is ignored, and nothing is lost.
func TestARepeatedReadIsAnsweredWithinBounds(t *testing.T) {
	const most = 16
	w := newWorld(1, false, 1500, sim.Impairment{})
	own := w.connect(0)
	attach(t, own, &reader{target{serving: true}}, 17, 18)
	way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
	ask := func(psn int, n uint32) {
		h := wire.Headers{
			BTH:      wire.BTH{Opcode: ib.ReadRequest, DestQP: 17, PSN: wire.PSN(psn), PKey: wire.DefaultPKey, AckReq: true},
			Extended: ib.Extended{RETH: ib.RETH{RKey: 7, Length: n}},
		}
		packet := append(h.Append(make([]byte, way.HeaderLen())), make([]byte, wire.ICRCLen)...)
		way.Put(packet)
		w.ports[0].Receive(1e9, packet)
	}
	answers := func() (got int) {
		for n, _ := w.engines[0].Transmit(1e9, w.packet[:]); n > 0 && got < 1000; n, _ = w.engines[0].Transmit(1e9, w.packet[:]) {
			got++
		}
		return got
	}
	next := 100
	for range 3 * most {
		ask(next, 8)
		next++
		if n := answers(); n != 1 {
			t.Fatalf("%d answers, want 1", n)
		}
	}
	for name, c := range map[string]struct {
		psn  int
		n    uint32
		want int
	}{
		"the last":                 {next - 1, 8, 1},
		"the last three in one":    {next - 3, 3 * 256, 3},
		"one packet more":          {next - 3, 3*256 + 1, 0},
		"more than a message":      {next - 3, 1<<31 + 1, 0}, // its last PSN would be far behind
		"more than fits in an int": {next - 3, 1<<32 - 1, 0},
	} {
		ask(c.psn, c.n)
		if n := answers(); n != c.want {
			t.Errorf("%s: %d answers, want %d", name, n, c.want)
		}
	}
	for psn := 100; psn < next; psn++ {
		ask(psn, 8)
	}
	if n := answers(); n != 2*most {
		t.Errorf("%d answers to %d asked again at once, want %d", n, next-100, 2*most)
	}
	if n := w.ports[0].Stats().Refused; n != 0 {
		t.Errorf("%d refused", n)
	}
	for range 2 { // the longest message, and again while it is answered
		ask(next, 1<<31)
		for i := range 3 {
			n, _ := w.engines[0].Transmit(1e9, w.packet[:])
			_, part, err := wire.Parse(w.packet[:n])
			var h wire.Headers
			if err == nil {
				_, err = h.Parse(part)
			}
			if err != nil || h.BTH.PSN != wire.PSN(next+i) {
				t.Errorf("packet %d of the answer: PSN %d, %v", i, h.BTH.PSN, err)
			}
		}
	}
	next += 1 << 23
	ask(next, 1<<31+1)
	if n := w.ports[0].Stats().Refused; n != 1 {
		t.Error("a longer message was not refused")
	}
}

// reader is a target that lets the peer read whatever it likes.
type reader struct{ target }

func (*reader) Read(uint32, uint64, uint32) (transport.Memory, transport.Refusal) {
	return zeros{}, transport.Accepted
}
