package local

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// maxTxns limits the queue of an end. Falcon's profile has a similar limit (MaxTxn).
const maxTxns = 1024

// txn is a transaction that was issued and is not done.
type txn struct {
	kind     falcon.TxnKind
	length   int // of the request
	response int // of a pull: maximum length of the response
	tag      uint64
	cost     credit.Cost
	parked   bool // has released cost
	hopeless bool // a limit is below its cost: it fails when its turn comes
}

// txns holds the transactions of an end, by RSN.
type txns struct {
	ring       []txn  // grows up to maxTxns
	head, tail uint32 // RSNs of the oldest transaction and of the next one
}

func (q *txns) empty() bool { return q.head == q.tail }

func (q *txns) full() bool { return q.tail-q.head == maxTxns }

func (q *txns) at(rsn uint32) *txn { return &q.ring[rsn&uint32(len(q.ring)-1)] }

// front returns the oldest transaction.
func (q *txns) front() *txn { return q.at(q.head) }

// push appends a transaction. There must be room for it.
func (q *txns) push(t *txn) {
	if int(q.tail-q.head) == len(q.ring) {
		q.grow()
	}
	*q.at(q.tail) = *t
	q.tail++
}

// grow doubles the ring.
func (q *txns) grow() {
	old := *q
	q.ring = make([]txn, max(16, 2*len(old.ring)))
	for rsn := q.head; rsn != q.tail; rsn++ {
		*q.at(rsn) = *old.at(rsn)
	}
}
