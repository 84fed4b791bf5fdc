package transport

// DatagramConn is one end of a connection that carries the datagrams between two functions, of all
// their queue pairs. It loses what it cannot carry, without a word.
type DatagramConn interface {
	// AttachDatagrams gives the connection to its endpoint, and says how many data bytes one
	// datagram has at most.
	AttachDatagrams(e DatagramEndpoint, a *Account) (segment int)
	// Send hands on the datagram that DatagramEndpoint.Outgoing names number. ErrBlocked: Unblocked
	// follows; other errors: Ended does.
	Send(now Time, number uint32, d *Datagram) error
	// ID names the connection in traces. NoteDelivered notes, while somebody traces, that the
	// endpoint took the datagram that Deliver called id.
	ID() uint32
	NoteDelivered(d *Datagram, id uint32)
	// Close ends the connection. The endpoint hears nothing more of it.
	Close(now Time)
}

// Datagram is what travels with the data of a datagram.
type Datagram struct {
	To, From  uint32 // queue pairs
	QKey      uint32
	Imm       uint32
	HasImm    bool
	Solicited bool
	Length    int    // of the data
	Work      uint32 // index of the work request of queue pair From, for traces
	Serial    uint32 // the transport's
}

// DatagramEndpoint is who sends and takes datagrams.
type DatagramEndpoint interface {
	// Outgoing is the datagram called number, with its data; nil when it is gone.
	Outgoing(number uint32) (*Datagram, []byte)
	// Sent ends a datagram. Whether it arrived is not the sender's to know, but that somebody is
	// there (heard).
	Sent(now Time, number uint32, heard bool)
	// Deliver takes a datagram of the peer; id names it in traces.
	Deliver(now Time, d *Datagram, data []byte, id uint32)
	// Unblocked says that what ErrBlocked refused may be tried again.
	Unblocked(now Time)
	// Ended says that the connection is over.
	Ended(now Time)
	// Settle ends a group of calls.
	Settle(now Time)
}
