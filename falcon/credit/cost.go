package credit

// Counter is one of the counters of a node: the six of Falcon §8.2.3, and two for the network pools
// of §8.2.4.
type Counter uint8

// The counters. "Req" counters are for push and pull requests, "Data" counters for pull responses.
// "Net" counters are for requests from the network: the unanswered ones, and the cells of those
// whose payload waits.
const (
	ReqPktTx Counter = iota
	ReqBufTx
	ReqPktRx
	ReqBufRx
	DataPktTx
	DataBufTx
	NetPktRx
	NetBufRx
	NumCounters = 8
)

var counterNames = [NumCounters]string{"req-pkt-tx", "req-buf-tx", "req-pkt-rx", "req-buf-rx", "data-pkt-tx", "data-buf-tx", "net-pkt-rx", "net-buf-rx"}

// String returns the name used in errors, `vnic show credits` and metrics.
func (c Counter) String() string {
	if int(c) < len(counterNames) {
		return counterNames[c]
	}
	return "unknown-counter"
}

// Cost holds an amount for each counter: packets for the Pkt counters, cells for the Buf counters.
type Cost [NumCounters]uint32

// Unlimited is a limit that is never reached in practice.
const Unlimited = ^uint32(0)

// NoLimit returns a limit of Unlimited for every counter.
func NoLimit() Cost {
	var c Cost
	for i := range c {
		c[i] = Unlimited
	}
	return c
}

// DefaultCell is the buffer unit N of Falcon §8.2.3 in bytes, for callers that have no reason to
// choose another.
const DefaultCell = 128

// Cells returns ceiling(length/cell), the buffer credits of length bytes. A negative length counts
// as 0, a cell below 1 as 1.
func Cells(length, cell int) uint32 {
	if length <= 0 {
		return 0
	}
	if cell < 1 {
		cell = 1
	}
	n := uint64(length-1)/uint64(cell) + 1
	return uint32(min(n, uint64(Unlimited)))
}

// PushCost returns the cost of a push transaction of length bytes (Falcon §8.2.3 table, row Push
// Data).
func PushCost(length, cell int) Cost {
	return Cost{ReqPktTx: 1, ReqBufTx: Cells(length, cell), ReqPktRx: 1}
}

// PullCost returns the cost of a pull request whose response may be length bytes (row Pull
// Request).
func PullCost(length, cell int) Cost {
	return Cost{ReqPktTx: 1, ReqBufTx: 1, ReqPktRx: 1, ReqBufRx: Cells(length, cell)}
}

// PullDataCost returns the cost of a pull response of length bytes (row Pull Response).
func PullDataCost(length, cell int) Cost {
	return Cost{DataPktTx: 1, DataBufTx: Cells(length, cell)}
}
