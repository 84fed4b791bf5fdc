package guest

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/roce"
)

// counted holds the counts of a function since it was enabled.
type counted struct {
	rdma rdma.Stats
	roce roce.Stats // zero without a port
}

// counters maps each counter that drivers can read to its value.
var counters = [...]func(c *counted) uint64{
	abi.CounterTxPackets:            func(c *counted) uint64 { return c.rdma.PushesTx + c.rdma.PullsTx },
	abi.CounterTxBytes:              func(c *counted) uint64 { return c.rdma.BytesTx },
	abi.CounterRxPackets:            func(c *counted) uint64 { return c.rdma.PushesRx + c.rdma.PullsRx },
	abi.CounterRxBytes:              func(c *counted) uint64 { return c.rdma.BytesRx },
	abi.CounterTxReads:              func(c *counted) uint64 { return c.rdma.PullsTx },
	abi.CounterRxReads:              func(c *counted) uint64 { return c.rdma.PullsRx },
	abi.CounterPosted:               func(c *counted) uint64 { return c.rdma.Posted },
	abi.CounterCompletions:          func(c *counted) uint64 { return c.rdma.Completed },
	abi.CounterCompletionErrors:     func(c *counted) uint64 { return c.rdma.Errors },
	abi.CounterFlushed:              func(c *counted) uint64 { return c.rdma.Flushed },
	abi.CounterSentRNR:              func(c *counted) uint64 { return c.rdma.RNRTx },
	abi.CounterReceivedRNR:          func(c *counted) uint64 { return c.rdma.RNRRx },
	abi.CounterRefused:              func(c *counted) uint64 { return c.rdma.Refused },
	abi.CounterDatagramsLost:        func(c *counted) uint64 { return c.rdma.DatagramsLost },
	abi.CounterQKeyViolations:       func(c *counted) uint64 { return c.rdma.BadQKeys },
	abi.CounterQPErrors:             func(c *counted) uint64 { return c.rdma.QPErrors },
	abi.CounterCQOverflows:          func(c *counted) uint64 { return c.rdma.CQOverflows },
	abi.CounterDoorbells:            func(c *counted) uint64 { return c.rdma.Doorbells },
	abi.CounterCreditWaits:          func(c *counted) uint64 { return c.rdma.CreditWaits },
	abi.CounterRateWaits:            func(c *counted) uint64 { return c.rdma.RateWaits },
	abi.CounterTimeouts:             func(c *counted) uint64 { return c.roce.Timeouts },
	abi.CounterMissing:              func(c *counted) uint64 { return c.roce.Missing },
	abi.CounterRetransmits:          func(c *counted) uint64 { return c.roce.Again },
	abi.CounterMarked:               func(c *counted) uint64 { return c.roce.Marked },
	abi.CounterNotificationsSent:    func(c *counted) uint64 { return c.roce.CNPsSent },
	abi.CounterNotificationsHandled: func(c *counted) uint64 { return c.roce.CNPs },
}

// QueryCounters implements abi.QueryHandler.
func (c *commands) QueryCounters(first abi.Counter) (abi.Counters, abi.Status) {
	r := abi.Counters{Total: uint16(len(counters))}
	if int(first) >= len(counters) {
		return abi.Counters{}, abi.StatusNotFound
	}
	now := counted{rdma: c.Stats()}
	if p := c.RoCE(); p != nil {
		now.roce = p.Stats()
	}
	for i, of := range counters[first:] {
		if 8*i == len(r.Values) {
			break
		}
		binary.LittleEndian.PutUint64(r.Values[8*i:], of(&now))
	}
	return r, abi.StatusOK
}
