package conn

import "github.com/falcon-vnic/vnic/falcon/credit"

// What a connection may hold where the configuration does not say: a quarter of what its function
// may, so that no peer that answers late, or not at all, has all of it; but as much as keeps a path
// full (Falcon's window for data is 128 packets). What requests from the network hold is not
// divided: the pools for it are small, and the head of each connection's line is always taken.
const (
	quarter      = 4
	leastPackets = 64
	leastCells   = leastPackets * 4096 / credit.DefaultCell
)

// NewCredits is a connection's node of the credit tree, below its function's. most is what it may
// hold; credit.Unlimited stands for its share.
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
