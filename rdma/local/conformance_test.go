package local_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/transport/conformance"
)

type host struct{}

func (host) CreditsChanged() {}

// TestConformance holds connections inside a NIC to the contract of package transport.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB, o conformance.Options) *conformance.Pair {
		e, framing := local.New(host{}), rof.New()
		open := func(own, other falcon.CID) transport.Conn {
			limit := credit.NoLimit()
			if o.Narrow {
				limit = credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: 40, credit.ReqPktRx: 3, credit.ReqBufRx: 40, credit.DataPktTx: 3, credit.DataBufTx: 40}
			}
			c, err := e.Open(falcon.ConnConfig{
				LocalCID: own, RemoteCID: other, Ordered: o.Ordered, MTU: o.PathMTU + 56, Credits: credit.New(nil, limit),
			})
			if err != nil {
				t.Fatal(err)
			}
			return framing.Over(c)
		}
		return &conformance.Pair{A: open(1, 2), B: open(2, 1), Step: func(now transport.Time) transport.Time {
			for e.Run(now); e.Ready(); e.Run(now) {
			}
			return e.Deadline()
		}}
	})
}
