package falcon

// txnList is a doubly linked list of transactions.
type txnList struct{ head, tail *txn }

func (l *txnList) empty() bool { return l.head == nil }

// listID names a list. A transaction is in at most one.
type listID uint8

// Lists of a connection, those of fresh and retx by TxnKind, and one of the engine.
const (
	inNone    listID = iota
	inFlight         // sent and neither acknowledged nor refused, the longest ago first
	inFresh          // not sent yet
	inRetx    = 5    // to be sent again, in PSN order
	inStalled = 8    // Engine.stalled: pull responses that wait for credits

	connLists = inStalled - inFlight
)

func (c *Conn) list(id listID) *txnList {
	if id == inStalled {
		return &c.e.stalled
	}
	return &c.lists[id-inFlight]
}

func (c *Conn) flight() *txnList            { return &c.lists[0] }
func (c *Conn) fresh(kind TxnKind) *txnList { return &c.lists[inFresh+listID(kind)-inFlight] }
func (c *Conn) retx(kind TxnKind) *txnList  { return &c.lists[inRetx+listID(kind)-inFlight] }

// enlist puts t, which is in no list, at the end of one.
func (t *txn) enlist(id listID) { t.enlistAfter(id, t.conn.list(id).tail) }

// enlistByPSN keeps the list in PSN order; packets mostly come in order, so the search starts at the end.
func (t *txn) enlistByPSN(id listID) {
	at := t.conn.list(id).tail
	for at != nil && int32(at.psn-t.psn) > 0 {
		at = at.prev
	}
	t.enlistAfter(id, at)
}

func (t *txn) enlistAfter(id listID, at *txn) {
	l := t.conn.list(id)
	t.in, t.prev = id, at
	if at != nil {
		t.next, at.next = at.next, t
	} else {
		t.next, l.head = l.head, t
	}
	if t.next != nil {
		t.next.prev = t
	} else {
		l.tail = t
	}
	t.conn.busy |= wantOf(id)
}

// unlink takes t out of the list it is in.
func (t *txn) unlink() {
	if t.in == inNone {
		return
	}
	l := t.conn.list(t.in)
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.tail = t.prev
	}
	if l.head == nil {
		t.conn.busy &^= wantOf(t.in)
	}
	t.next, t.prev, t.in = nil, nil, inNone
}
