package transport

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Time is nanoseconds of the owner's clock.
type Time = vtime.Time

// Conn is one end of a connection between two queue pairs.
type Conn interface {
	// Attach gives the connection to its queue pair, and says how many data bytes one packet has at
	// most. ok is false when that is too little, or the connection has been given away before.
	Attach(t *Terms) (segment int, ok bool)
	// Ordered reports whether messages arrive in the order they are sent.
	Ordered() bool
	// LimitReads says how many READ and atomic packets may be under way.
	LimitReads(n int)
	// UnderWay is how many packets are: those with data, and READs and atomics.
	UnderWay() (pushes, pulls int)

	// Issue hands on the next packet of r, and says how much data it has.
	Issue(now Time, r *Request) (n int, err error)
	// Forget drops all requests under way.
	Forget()

	// Drain, Close and Abort end the connection.
	Drain(now Time)
	Close(now Time)
	Abort(now Time)

	// Prefetch has the processor fetch what Issue needs.
	Prefetch()
	// ID names the connection in traces.
	ID() uint32
}

// Terms is what a connection has to know of the queue pair it is attached to.
type Terms struct {
	Endpoint   Endpoint
	QPN, Peer  uint32   // this end's number and the other's
	PathMTU    int      // bytes of data in a packet, at most
	XRC        bool     // an extended reliable connection: packets name the shared receive queue
	Unreliable bool     // an unreliable connection: no requests but SENDs and WRITEs, which may be lost (see the package's text)
	Unordered  bool     // messages complete as they come
	InError    bool     // a request that fails completes in error, and the others go on
	Serves     int      // READ and atomic packets of the peer that may be unanswered
	Reads      int      // of this end's own
	PSN        uint32   // that the peer begins with
	Sending    *Sending // how this end sends; its owner changes it
	Account    *Account
}

// Sending is what a driver says of how its queue pair sends, in the units of verbs. Transports read
// it when they need it: a queue pair learns it after it began to receive.
type Sending struct {
	PSN        uint32 // of the first packet, 24 bits
	Timeout    uint8  // 4.096 µs · 2^Timeout without an answer, then a packet is sent again; 0: never
	RetryCount uint8  // so often
}

// Account is where the connections of a function count what they do, and note it while somebody
// looks.
type Account struct {
	Counters
	Trace *trace.Ring // nil: nobody
}

// Counters are the events that transports count.
type Counters struct {
	PushesTx      uint64 // SEND and WRITE packets issued
	PullsTx       uint64 // READ and atomic packets issued
	BytesTx       uint64 // data bytes of those pushes
	PushesRx      uint64 // SEND and WRITE packets taken
	PullsRx       uint64 // READ and atomic requests taken
	BytesRx       uint64 // data bytes of pushes and pull responses placed in memory
	RNRTx         uint64 // receiver-not-ready answers given
	RNRRx         uint64 // receiver-not-ready answers received
	PullsDeferred uint64 // times a READ or atomic request was put off: no slot, no rate, or before its turn
	Refused       uint64 // requests refused with a syndrome
	CIDMismatches uint64 // packets for a QP that does not own the connection (RDMA over Falcon §6.9)
	CreditWaits   uint64 // times a QP had to wait for Falcon credit
	RateWaits     uint64 // times the function, or a READ of it, had to wait for its rate
	DatagramsLost uint64 // that could not be sent or delivered
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.PushesTx += o.PushesTx
	c.PullsTx += o.PullsTx
	c.BytesTx += o.BytesTx
	c.PushesRx += o.PushesRx
	c.PullsRx += o.PullsRx
	c.BytesRx += o.BytesRx
	c.RNRTx += o.RNRTx
	c.RNRRx += o.RNRRx
	c.PullsDeferred += o.PullsDeferred
	c.Refused += o.Refused
	c.CIDMismatches += o.CIDMismatches
	c.CreditWaits += o.CreditWaits
	c.RateWaits += o.RateWaits
	c.DatagramsLost += o.DatagramsLost
}
