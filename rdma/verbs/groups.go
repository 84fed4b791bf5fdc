package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Groups holds the multicast groups that queue pairs of a function are attached to. The limit
// counts attachments: one queue pair in one group.
type Groups struct {
	owner        *Owner
	qps          *QPs
	destinations Destinations
	members      map[[16]byte][]*QP
	attached     int
	most         int
}

// AttachMcast attaches a queue pair to a multicast group (InfiniBand §11.3.1).
func (t *Groups) AttachMcast(p *abi.Mcast) abi.Status {
	q := t.qps.QP(p.QPN)
	switch {
	case !t.owner.Working():
		return abi.StatusBadState
	case q == nil:
		return abi.StatusNotFound
	case q.typ != abi.QPTypeUD || !IsMulticast(p.GID):
		return abi.StatusInvalidArgument
	case t.destinations.To(&Address{GID: p.GID}, false) == nil:
		return abi.StatusUnsupported
	case slices.Contains(t.members[p.GID], q):
		return abi.StatusOK
	case t.attached >= t.most:
		return abi.StatusNoResources
	}
	if t.members == nil {
		t.members = map[[16]byte][]*QP{}
	}
	t.members[p.GID] = append(t.members[p.GID], q)
	q.groups = append(q.groups, p.GID)
	t.attached++
	return abi.StatusOK
}

// DetachMcast detaches a queue pair from a multicast group.
func (t *Groups) DetachMcast(p *abi.Mcast) abi.Status {
	q := t.qps.QP(p.QPN)
	if q == nil || !slices.Contains(q.groups, p.GID) {
		return abi.StatusNotFound
	}
	q.groups = slices.DeleteFunc(q.groups, func(g [16]byte) bool { return g == p.GID })
	t.leave(q, p.GID)
	return abi.StatusOK
}

// forget detaches a queue pair that is being destroyed from all groups.
func (t *Groups) forget(q *QP) {
	for _, g := range q.groups {
		t.leave(q, g)
	}
	q.groups = nil
}

func (t *Groups) leave(q *QP, gid [16]byte) {
	left := slices.DeleteFunc(t.members[gid], func(m *QP) bool { return m == q })
	if t.members[gid] = left; len(left) == 0 {
		delete(t.members, gid)
	}
	t.attached--
}

// Joined reports whether any queue pair is attached to a group.
func (t *Groups) Joined(gid [16]byte) bool { return len(t.members[gid]) > 0 }

// DeliverGroup delivers a datagram to at most most queue pairs of a group, beginning with number
// first. Each receives or drops it independently. A queue pair of the sender receives it too. n is
// the number of queue pairs served; more reports whether others remain, from first+n on.
func (t *Groups) DeliverGroup(now vtime.Time, gid [16]byte, d *Arrival, first, most int) (n int, more bool) {
	members := t.members[gid]
	members = members[min(first, len(members)):]
	n = min(most, len(members))
	for _, q := range members[:n] {
		d.To = q.number
		t.qps.deliver(now, q, d)
	}
	return n, n < len(members)
}

func (t *Groups) count() int        { return t.attached }
func (t *Groups) setLimit(most int) { t.most = most }

func (t *Groups) closeAll(vtime.Time) {} // the queue pairs were destroyed before, and detached
