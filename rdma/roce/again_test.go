package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// TestAskedAgain: a peer asks again for as many READs or atomics as it may have under way, then
// gets the answers that were late, and asks for as many new ones. All of that arrives at once, and
// none of it is refused.
func TestAskedAgain(t *testing.T) {
	const most = 16
	for name, op := range map[string]wire.Opcode{"READ": wire.ReadRequest, "atomic": wire.FetchAdd} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, false, 1500, sim.Impairment{})
			own := w.connect(0)
			attach(t, own, &target{serving: true}, 17, 18)
			way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
			ask := func(from int) {
				for i := from; i < from+most; i++ {
					h := wire.Headers{
						BTH:    wire.BTH{Opcode: op, DestQP: 17, PSN: wire.PSN(100 + i), PKey: wire.DefaultPKey, AckReq: true},
						RETH:   falcon.RETH{RKey: 7, Length: 8},
						Atomic: falcon.AtomicETH{RKey: 7},
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
