package transport

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Time is in nanoseconds of the owner's clock.
type Time = vtime.Time

// Conn is one end of a connection between two queue pairs.
type Conn interface {
	// Attach assigns the connection to its queue pair and returns the maximum of data bytes in one
	// packet. ok is false if the connection cannot meet the terms or was attached before.
	Attach(t *Terms) (segment int, ok bool)
	// Ordered reports whether messages arrive in the order they are sent.
	Ordered() bool
	// Features returns what the wire can do. Attach refuses terms that need more, and Issue fails a
	// request that does with WCLocQPOpErr.
	Features() Features
	// LimitReads sets how many READ and atomic packets may be in flight.
	LimitReads(n int)
	// UnderWay returns how many packets are in flight: pushes with data, and pulls (READs and
	// atomics).
	UnderWay() (pushes, pulls int)

	// Issue sends the next packet of r and returns its number of data bytes.
	Issue(now Time, r *Request) (n int, err error)
	// Forget drops all requests in progress.
	Forget()

	// Drain, Close and Abort end the connection; see the package comment.
	Drain(now Time)
	Close(now Time)
	Abort(now Time)

	// Prefetch prefetches the memory that Issue needs.
	Prefetch()
	// ID returns the number of the connection in traces.
	ID() uint32
}

// Features is a set of what a wire may be able to do, beyond carrying WRITEs, READs, atomics and
// SENDs without immediate data in order over reliable connections.
type Features uint16

// Features of wires.
const (
	Unordered    Features = 1 << iota // messages that complete as they arrive
	FailureAlone                      // a request that fails completes in error, and the others continue
	Unreliable                        // unreliable connections
	XRC                               // extended reliable connections
	SendImm                           // SENDs with immediate data
	Waiting                           // a message that finds no receive waits for one; else it ends the connection
	Confirmation                      // SENDs and WRITEs are done when the peer has accepted them; else when its host has them (see the package comment)
	Credits                           // requests take credits of the function

	AllFeatures = Credits<<1 - 1
)

// Terms describes the queue pair that a connection is attached to.
type Terms struct {
	Endpoint   Endpoint
	QPN, Peer  uint32   // this end's number and the other's
	PathMTU    int      // maximum of data bytes in a packet
	XRC        bool     // an extended reliable connection: packets name the shared receive queue
	Unreliable bool     // an unreliable connection: only SENDs and WRITEs, which may be lost (see the package comment)
	Unordered  bool     // messages complete as they arrive
	InError    bool     // a request that fails completes in error, and the others continue
	Serves     int      // limit of unanswered READ and atomic packets of the peer
	Reads      int      // limit of this end's own unanswered READ and atomic packets
	PSN        uint32   // first PSN of the peer
	Sending    *Sending // how this end sends; the queue pair may change it later
	Account    *Account
}

// Sending holds what a driver sets about sending, in the units of verbs. Transports read it when
// they need it, because a queue pair gets it after it has begun to receive.
type Sending struct {
	PSN        uint32 // of the first packet, 24 bits
	Timeout    uint8  // a packet without an answer is sent again after 4.096 µs · 2^Timeout; 0: never
	RetryCount uint8  // how often
}

// Account holds the counters of a function's connections, and the trace ring while the function is
// traced.
type Account struct {
	Counters
	Trace *trace.Ring // nil: not traced
}

// Counters counts the events of transports.
type Counters struct {
	PushesTx      uint64 // SEND and WRITE packets issued
	PullsTx       uint64 // READ and atomic packets issued
	BytesTx       uint64 // data bytes of those pushes
	PushesRx      uint64 // SEND and WRITE packets taken
	PullsRx       uint64 // READ and atomic requests taken
	BytesRx       uint64 // data bytes of pushes and pull responses placed in memory
	RNRTx         uint64 // receiver-not-ready answers given
	RNRRx         uint64 // receiver-not-ready answers received
	PullsDeferred uint64 // times a READ or atomic request was deferred: no slot, no rate, or before its turn
	Refused       uint64 // requests refused with a syndrome
	CIDMismatches uint64 // packets for a QP that does not own the connection (RDMA over Falcon §6.9)
	CreditWaits   uint64 // times a QP had to wait for credit
	RateWaits     uint64 // times the function, or a READ of it, had to wait for its rate
	DatagramsLost uint64 // datagrams that could not be sent or delivered
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
