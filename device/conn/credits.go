package conn

import "github.com/falcon-vnic/vnic/falcon/credit"

// The default credit limit of a connection, where the configuration sets none: a quarter of its
// function's limit, so that a peer that answers late, or never, cannot take all of it; but at least
// 64 packets of 4 KiB, as many requests as a connection sends by default before the first is
// acknowledged (falcon.req_tx_window). Credits for requests from the network are not divided: those
// pools are small, and the first request of each connection is always accepted.
const (
	quarter      = 4
	leastPackets = 64
	leastCells   = leastPackets * 4096 / credit.DefaultCell
)

// NewCredits returns a connection's node of the credit tree, below its function's node. most is the
// limit; credit.Unlimited means the default limit.
func NewCredits(function *credit.Node, most credit.Cost) *credit.Node {
	all := function.Limit()
	for i := range credit.NetPktRx {
		if most[i] == credit.Unlimited && all[i] != credit.Unlimited {
			most[i] = max(all[i]/quarter, leastOf(i))
		}
	}
	return credit.New(function, most)
}

func leastOf(i credit.Counter) uint32 {
	switch i {
	case credit.ReqBufTx, credit.ReqBufRx, credit.DataBufTx:
		return leastCells
	}
	return leastPackets
}
