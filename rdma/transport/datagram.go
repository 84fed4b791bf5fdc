package transport

// DatagramConn is one end of a connection that carries the datagrams between two functions, for all
// their queue pairs. A datagram that it cannot carry is dropped without notice.
type DatagramConn interface {
	// AttachDatagrams assigns the connection to its endpoint and returns the maximum of data bytes
	// in one datagram.
	AttachDatagrams(e DatagramEndpoint, a *Account) (segment int)
	// Send sends the datagram that DatagramEndpoint.Outgoing returns for number. After ErrBlocked,
	// Unblocked follows; after another error, Ended.
	Send(now Time, number uint32, d *Datagram) error
	// ID returns the number of the connection in traces. NoteDelivered records, while traced, that
	// the endpoint accepted the datagram that Deliver named id.
	ID() uint32
	NoteDelivered(d *Datagram, id uint32)
	// Close ends the connection. The endpoint gets no more calls.
	Close(now Time)
}

// Datagram holds what is sent with the data of a datagram.
type Datagram struct {
	To, From  uint32 // queue pairs
	QKey      uint32
	Imm       uint32
	HasImm    bool
	Solicited bool
	Length    int    // of the data
	Work      uint32 // index of the work request of queue pair From, for traces
	Serial    uint32 // for the use of the transport
}

// DatagramEndpoint sends and receives datagrams.
type DatagramEndpoint interface {
	// Outgoing returns the datagram with that number and its data, nil if it is gone.
	Outgoing(number uint32) (*Datagram, []byte)
	// Sent ends a datagram. The sender does not learn whether it arrived; heard reports whether the
	// other end has answered at all.
	Sent(now Time, number uint32, heard bool)
	// Deliver delivers a datagram of the peer; id is its number in traces.
	Deliver(now Time, d *Datagram, data []byte, id uint32)
	// Unblocked reports that a send that failed with ErrBlocked may be tried again.
	Unblocked(now Time)
	// Ended reports that the connection is over.
	Ended(now Time)
	// Settle ends a group of calls.
	Settle(now Time)
}
