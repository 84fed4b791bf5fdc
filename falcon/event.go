package falcon

// ULP is the upper layer protocol of an engine.
type ULP interface {
	// Fill writes the ULP headers and data of a transaction's packet, for every transmission and
	// retransmission. len(dst) is the length promised to Push, Pull or RespondPull. Fill returns
	// the number of bytes written; only a pull response or a push may have fewer. An error ends a
	// push or pull with CmplLocalXlr, and a pull response with CmplRemoteErr at the peer; a Resync
	// packet fills the hole. Fill must not call the engine.
	Fill(c *Conn, kind TxnKind, tag uint64, dst []byte) (int, error)
}

// Event is one event for the ULP. Data is valid until the next call of Next.
type Event struct {
	Kind    EventKind
	Conn    *Conn
	RSN     uint32
	Tag     uint64
	Length  int
	Code    Completion
	ULPCode uint8
	Reason  CloseReason
	Data    []byte
}

// upcall is an event with what Next must check or release when it takes it.
type upcall struct {
	ev   Event
	cell *cell
	rx   *rxTxn // EvPush, EvPull: deliver only if still queued
	gen  uint32
}

// emit appends an upcall of that kind; the caller sets its other fields.
func (c *state) emit(kind EventKind) *upcall {
	u := c.e.events.Push()
	*u = upcall{ev: Event{Kind: kind, Conn: c.self()}}
	return u
}
