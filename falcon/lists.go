package falcon

import "github.com/falcon-vnic/vnic/internal/list"

// Bits of Conn.busy say what a connection has to send: acknowledgements, or the transactions of a
// list.
const (
	wantAck  = 1 << 0
	wantNack = 1 << 1
)

// wantOf returns the busy bit of a list, 0 if its transactions do not wait to be sent.
func wantOf(id listID) uint8 {
	if id < inFresh || id >= inAnswer {
		return 0
	}
	return 1 << id
}

const (
	wantPush       = 1 << (inFresh + listID(TxnPush))
	wantPull       = 1 << (inFresh + listID(TxnPull))
	wantPullData   = 1 << (inFresh + listID(TxnPullData))
	wantRetransmit = wantPush<<3 | wantPull<<3 | wantPullData<<3
)

func (c *state) list(id listID) *list.List[txn] {
	if id == inStalled {
		return &c.e.waiting.stalled
	}
	return &c.lists[id-inFlight]
}

func (c *state) flight() *list.List[txn] { return &c.lists[0] }

func (c *state) answers() *list.List[txn] { return &c.lists[inAnswer-inFlight] }

func (c *state) fresh(kind TxnKind) *txn { return c.first(inFresh + listID(kind)) }

func (c *state) retx(kind TxnKind) *txn { return c.first(inRetx + listID(kind)) }

// first returns the first transaction of a list that waits to be sent, nil if there is none. It
// reads the list only if the list is not empty: most lists of a connection are empty and not in the
// cache.
func (c *state) first(id listID) *txn {
	if c.busy&wantOf(id) == 0 {
		return nil
	}
	return c.list(id).First()
}

// enlist appends t, which is in no list, to a list.
func (t *txn) enlist(id listID) {
	t.in = id
	t.conn.list(id).PushBack(&t.place, t)
	t.conn.busy |= wantOf(id)
}

// enlistByPSN inserts t into a list in PSN order. Packets mostly come in order, so the search
// starts at the end.
func (t *txn) enlistByPSN(id listID) {
	l := t.conn.list(id)
	at := l.Last() // t is inserted after it
	for at != nil && int32(at.psn-t.psn) > 0 {
		at = at.place.Prev()
	}
	t.in = id
	if at == nil {
		l.PushFront(&t.place, t)
	} else {
		t.place.InsertAfter(&at.place, t)
	}
	t.conn.busy |= wantOf(id)
}

// unlink removes t from its list, if it is in one.
func (t *txn) unlink() {
	if t.in == inNone {
		return
	}
	t.place.Remove()
	if t.conn.list(t.in).Empty() {
		t.conn.busy &^= wantOf(t.in)
	}
	t.in = inNone
}
