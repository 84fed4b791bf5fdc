package iwarp_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// BenchmarkWrite sends WRITEs of 64 KiB through both ends of a connection and the test's stream, which
// copies them once.
func BenchmarkWrite(b *testing.B) {
	for _, mss := range []int{1460, 8960} {
		for _, crc := range []bool{true, false} {
			b.Run(fmt.Sprintf("mss=%d/crc=%t", mss, crc), func(b *testing.B) {
				w := iwarptest.New(b, 1)
				s := iwarp.Settings{CRC: crc, IRD: 16, ORD: 16}
				p := &pair{Net: w, t: b, link: w.Connect(0, iwarptest.Shape{MSS: mss, Size: 1 << 20}, [2]iwarp.Settings{s, s}), now: 1e9}
				for i := range p.ends {
					p.ends[i] = newEndpoint(b)
					p.ends[i].quiet = true
					p.ends[i].attach(p.link.Conns[i])
				}
				r := p.ends[0].post(abi.SendWQE{Opcode: abi.OpWrite}, 1<<16)
				b.SetBytes(1 << 16)
				for b.Loop() {
					p.ends[0].next, r.over = 0, false
					r.Request = transport.Request{WQE: r.WQE, Length: r.Length, Slot: r.Slot}
					for p.ends[0].issue(p.now); !r.over; p.ends[0].issue(p.now) {
						p.Step(p.now)
					}
				}
			})
		}
	}
}
