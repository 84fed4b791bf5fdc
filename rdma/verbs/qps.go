package verbs

import (
	"cmp"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPs holds the queue pairs of a function.
type QPs struct {
	owner   *Owner
	shared  *Shared
	sched   Scheduler
	pds     *PDs
	xrcds   *XRCDs
	regions *Regions
	cqs     *CQs
	srqs    *SRQs
	ahs     *AHs
	groups  *Groups
	table   Table[QP]
	gsi     *QP // has number 1
}

// QP returns the queue pair with number qpn, nil if there is none.
func (t *QPs) QP(qpn uint32) *QP {
	if qpn == gsiNumber {
		return t.gsi
	}
	return t.table.Get(qpn)
}

// each calls do for every queue pair. do may destroy it.
func (t *QPs) each(do func(*QP)) {
	t.table.Each(do)
	if t.gsi != nil {
		do(t.gsi)
	}
}

func (t *QPs) count() int              { return t.table.InUse() }
func (t *QPs) setLimit(most int)       { t.table.SetLimit(most) }
func (t *QPs) closeAll(now vtime.Time) { t.each(func(q *QP) { q.destroy(now) }) }

// DestroyQP destroys a queue pair and closes its connection. Outstanding work gets no completion.
func (t *QPs) DestroyQP(now vtime.Time, qpn uint32) abi.Status {
	q := t.QP(qpn)
	if q == nil {
		return abi.StatusNotFound
	}
	q.destroy(now)
	return abi.StatusOK
}

func (q *QP) destroy(now vtime.Time) {
	q.stopWork()
	q.leaveConn(now)
	q.state = abi.QPStateReset
	q.windows.unbindAll()
	q.in.groups.forget(q)
	if q == q.in.gsi {
		q.in.gsi = nil
	} else {
		q.in.table.Remove(q.number)
	}
	q.count(-1)
}

// brokenQueue returns why one of the QP's queues is broken, "" if none is.
func (q *QP) brokenQueue() string {
	if q.srq != nil {
		return cmp.Or(q.sq.broken, q.srq.queue.broken)
	}
	return cmp.Or(q.sq.broken, q.rq.broken)
}

// Settle moves queue pairs to ERR whose queues broke, and fails broken SRQs. Every entry point ends
// with it.
func (t *QPs) Settle(now vtime.Time) {
	if t.owner.dirty {
		t.settle(now)
	}
}

func (t *QPs) settle(now vtime.Time) {
	for t.owner.Unsettled() {
		t.each(func(q *QP) {
			switch {
			case q.sendCQ.Broken() || q.recvCQ.Broken():
				q.fail(now, abi.WCGeneralErr, "completion queue failed")
			case q.brokenQueue() != "":
				q.fail(now, abi.WCLocQPOpErr, q.brokenQueue())
			}
		})
		t.srqs.failBroken()
	}
}

// Unstick wakes all queue pairs, whose send queues Faults.Stuck may have held back.
func (t *QPs) Unstick(now vtime.Time) {
	t.each((*QP).wake)
	t.Settle(now)
}

// count adds n to the users of every object that the QP uses.
func (q *QP) count(n int) {
	q.pd.Use(n)
	q.sendCQ.Use(n)
	q.recvCQ.Use(n)
	q.srq.Use(n)
	q.xrcd.Use(n)
}
