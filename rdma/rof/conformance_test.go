package rof_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/transport/conformance"
)

// TestConformance holds connections over Falcon to the contract of package transport, on a good
// network and on bad ones.
func TestConformance(t *testing.T) {
	for seed := range uint64(3) {
		net := sim.Impairment{Delay: 5000}
		if seed > 0 {
			net = sim.Impairment{Delay: 20e3, Jitter: 40e3, Loss: 0.05, Duplicate: 0.05, Reorder: 0.1, ReorderDelay: 200e3}
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			conformance.Run(t, func(t testing.TB, o conformance.Options) *conformance.Pair { return open(t, o, seed, net) })
		})
	}
}

func open(t testing.TB, o conformance.Options, seed uint64, net sim.Impairment) *conformance.Pair {
	limit := credit.NoLimit()
	if o.Narrow {
		limit = credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: 40, credit.ReqPktRx: 3, credit.ReqBufRx: 40, credit.DataPktTx: 3, credit.DataBufTx: 40}
	}
	own := [2]*rof.Engine{rof.New(), rof.New()}
	cfg := falcon.Config{Profile: falcon.Software(), Credits: credit.New(nil, limit)}
	other := cfg
	other.Credits = credit.New(nil, credit.NoLimit())
	w := sim.NewWorld(seed, [2]falcon.Config{cfg, other}, [2]sim.Handler{own[0], own[1]}, net)
	w.FlushAcks = true
	w.Now = 1e9
	var ends [2]transport.Conn
	for i, e := range own {
		e.UseFalcon(w.Nodes[i].Engine)
		id := uint32(i)
		c, err := w.Nodes[i].Engine.Open(1e9, falcon.ConnConfig{
			LocalCID: 1 + id, RemoteCID: 2 - id, LocalFunction: 1 + id, RemoteFunction: 2 - id,
			Protocol: wire.ProtocolRDMA, Ordered: o.Ordered, MTU: o.PathMTU + 56, GiveUp: 2e9,
			TxDataPSN: 0xfffffff0 + id, TxReqPSN: 0xfffffff0 + id, TxRSN: 0xfffffff0 + id,
			RxDataPSN: 0xfffffff0 + 1 - id, RxReqPSN: 0xfffffff0 + 1 - id, RxRSN: 0xfffffff0 + 1 - id,
		})
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = e.Over(c)
	}
	return &conformance.Pair{A: ends[0], B: ends[1], Step: func(now transport.Time) transport.Time {
		w.Now = now
		w.Step()
		return w.Deadline()
	}}
}
