package falcon

// ULP is the upper layer protocol of an engine.
type ULP interface {
	// Fill writes the ULP headers and data of a transaction's packet, for every transmission and
	// retransmission. len(dst) is the length promised at Push, Pull or RespondPull; Fill returns
	// the bytes written, fewer only for a pull response or a push that shrinks. An error ends a
	// push or pull with CmplLocalXlr, and a pull response with CmplRemoteErr at the peer; a Resync
	// packet fills the hole. Fill must not call the engine.
	Fill(c *Conn, kind TxnKind, tag uint64, dst []byte) (int, error)
}

// Event is one upcall. Data is borrowed until the next call of Next.
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

// upcall is an event and what must be checked or released when it is taken.
type upcall struct {
	ev   Event
	cell *cell
	rx   *rxTxn // EvPush, EvPull: deliver only if still queued
	gen  uint32
}

// emit appends an upcall, whose other fields the caller sets.
func (c *state) emit(kind EventKind) *upcall {
	u := c.e.events.Push()
	*u = upcall{ev: Event{Kind: kind, Conn: c.self()}}
	return u
}
