package roce_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/transport/conformance"
)

// TestConformance holds connections over RoCEv2 to the contract of package transport, on a good
// network and on bad ones.
func TestConformance(t *testing.T) {
	for seed := range uint64(6) {
		net := sim.Impairment{Delay: 5000}
		if seed > 0 {
			net = sim.Impairment{
				Delay: 20e3, Jitter: 40e3, Loss: 0.05, Duplicate: 0.05, Reorder: 0.1, ReorderDelay: 200e3, Corrupt: 0.02, Mark: 0.1,
			}
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			conformance.Run(t, func(t testing.TB, o conformance.Options) *conformance.Pair {
				return open(o, seed, net)
			})
		})
	}
}

func open(o conformance.Options, seed uint64, net sim.Impairment) *conformance.Pair {
	w := newWorld(seed, seed%2 == 1, 1500, net)
	a, b := w.connect(0), w.connect(1)
	if o.Narrow {
		limit := credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: 40, credit.ReqPktRx: 3, credit.ReqBufRx: 40, credit.DataPktTx: 3, credit.DataBufTx: 40}
		a = w.ports[0].Open(0, transport.Way{Peer: w.ports[1].Addr}, credit.New(nil, limit)).(*roce.Conn)
	}
	return &conformance.Pair{A: a, B: b, Lossy: net.Loss > 0, Step: func(now transport.Time) transport.Time { return w.step(now) }}
}
