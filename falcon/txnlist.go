package falcon

// txnList is a doubly linked list of transactions. prev of the first is the last, next of the last
// is nil: one pointer is enough then, of which a connection has seven.
type txnList struct{ head *txn }

func (l *txnList) empty() bool { return l.head == nil }

// last returns the last transaction, nil if there is none.
func (l *txnList) last() *txn {
	if l.head == nil {
		return nil
	}
	return l.head.prev
}

// listID names a list. A transaction is in at most one.
type listID uint8

// Lists of a connection, those of fresh and retx by TxnKind, and one of the engine.
const (
	inNone    listID = iota
	inFlight         // sent and neither acknowledged nor refused, the longest ago first
	inFresh          // not sent yet
	inRetx    = 5    // to be sent again, in PSN order
	inAnswer  = 8    // received by the peer, whose ULP has not answered; the longest ago first
	inStalled = 9    // Engine.stalled: pull responses that wait for credits

	connLists = inStalled - inFlight
)

func (c *Conn) list(id listID) *txnList {
	if id == inStalled {
		return &c.e.stalled
	}
	return &c.lists[id-inFlight]
}

func (c *Conn) flight() *txnList        { return &c.lists[0] }
func (c *Conn) answers() *txnList       { return &c.lists[inAnswer-inFlight] }
func (c *Conn) fresh(kind TxnKind) *txn { return c.first(inFresh + listID(kind)) }
func (c *Conn) retx(kind TxnKind) *txn  { return c.first(inRetx + listID(kind)) }

// first returns the first transaction of a list that waits to be sent, nil if there is none. It
// looks at the list only if there is: most lists of a connection are empty, and not in the cache.
func (c *Conn) first(id listID) *txn {
	if c.busy&wantOf(id) == 0 {
		return nil
	}
	return c.list(id).head
}

// enlist puts t, which is in no list, at the end of one.
func (t *txn) enlist(id listID) {
	l := t.conn.list(id)
	t.in, t.next = id, nil
	if l.head == nil {
		l.head, t.prev = t, t
	} else {
		last := l.head.prev
		t.prev, last.next, l.head.prev = last, t, t
	}
	t.conn.busy |= wantOf(id)
}

// enlistByPSN keeps the list in PSN order; packets mostly come in order, so the search starts at
// the end.
func (t *txn) enlistByPSN(id listID) {
	l := t.conn.list(id)
	at := l.last() // t goes behind it
	for at != nil && int32(at.psn-t.psn) > 0 {
		if at == l.head {
			at = nil
			break
		}
		at = at.prev
	}
	switch {
	case at == nil && l.head != nil: // in front
		t.in, t.next, t.prev = id, l.head, l.head.prev
		l.head.prev, l.head = t, t
	case at == l.last():
		t.enlist(id)
	default:
		t.in, t.next, t.prev = id, at.next, at
		at.next.prev, at.next = t, t
	}
}

// unlink takes t out of the list it is in.
func (t *txn) unlink() {
	if t.in == inNone {
		return
	}
	l := t.conn.list(t.in)
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		l.head.prev = t.prev
	}
	if t == l.head {
		l.head = t.next
	} else {
		t.prev.next = t.next
	}
	if l.head == nil {
		t.conn.busy &^= wantOf(t.in)
	}
	t.next, t.prev, t.in = nil, nil, inNone
}
