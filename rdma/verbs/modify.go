package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ModifyQP changes state and attributes. Without a state it changes attributes as a transition from
// the state to itself. All of m is checked before anything changes.
func (t *QPs) ModifyQP(now vtime.Time, m *abi.ModifyQP) abi.Status {
	if !t.owner.Working() {
		return abi.StatusBadState
	}
	q := t.QP(m.QPN)
	if q == nil {
		return abi.StatusNotFound
	}
	to := q.state
	if m.Mask&abi.QPAttrState != 0 {
		to = m.State
	}
	sgid, has := t.owner.GID(m.SGIDIndex)
	switch {
	case !inRange(t.owner.Limits(), m):
		return abi.StatusInvalidArgument
	case m.Mask&abi.QPAttrAV != 0 && !has, m.Mask&abi.QPAttrDestQPN != 0 && !joins(sgid, m.DGID):
		return abi.StatusInvalidArgument
	case m.Mask&abi.QPAttrAV != 0 && m.VLAN != 0 && m.VLAN != abi.NoVLAN:
		return abi.StatusUnsupported
	case m.Mask&abi.QPAttrCurState != 0 && m.CurState != q.state:
		return abi.StatusInvalidArgument
	case to == abi.QPStateErr && q.state == abi.QPStateReset:
		return abi.StatusBadState
	case q.state == abi.QPStateSQD && m.Mask&abi.QPAttrAV != 0 && (m.DGID != q.peer.gid || sgid != q.attr.sgid):
		return abi.StatusInvalidArgument // the connection is between these two
	}
	// Drivers of before the table set the attributes of a connection whenever they liked.
	if t.owner.Extended() || m.Mask&^AttrWhenever != 0 {
		if st := allowed(q.typ, q.state, to, m.Mask); st != abi.StatusOK {
			return st
		}
	}
	if to == abi.QPStateReset {
		q.reset(now)
		t.Settle(now)
		return abi.StatusOK
	}
	if q.state == abi.QPStateReset && to == abi.QPStateInit {
		q.sq.clean(abi.QueueHeaderSize)
		q.rq.clean(abi.QueueHeaderSize)
	}
	q.set(m)
	q.change(now, to)
	t.Settle(now)
	return abi.StatusOK
}

// set takes over what m names.
func (q *QP) set(m *abi.ModifyQP) {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	q.attr.set(m)
	if has(abi.QPAttrAV) {
		q.attr.sgid, _ = q.owner.GID(m.SGIDIndex)
	}
	q.limitReads()
	if has(abi.QPAttrDestQPN) { // to RTR, and with it AV
		q.peer.wired, q.peer.number, q.peer.gid = true, m.DestQPN, m.DGID
	}
	if q.state != abi.QPStateSQD { // asked for with the move there; nobody looks elsewhere
		q.sqdNotify = has(abi.QPAttrSQDNotify) && m.SQDNotify == 1
	}
}

// change moves the QP to a state that the table allows.
func (q *QP) change(now vtime.Time, to abi.QPState) {
	from := q.state
	switch {
	case to == from:
	case to == abi.QPStateErr:
		q.enterErr(now)
	case to == abi.QPStateSQD:
		q.state = to
		q.polled.Remove()
		q.drained(now)
	default:
		q.state = to
		q.wake()
	}
}

// drained tells the driver, once per move to SQD and if it asked, that no send is outstanding any
// more. It finds their completions then (DEV-908), also where they were kept back on purpose.
func (s *requester) drained(now vtime.Time) {
	q := s.q
	if q.state != abi.QPStateSQD || !s.sqdNotify || s.req.begun() {
		return
	}
	s.sqdNotify = false
	if s.sendCQ != nil { // an XRC target has none
		s.sendCQ.Release(now)
	}
	q.owner.Event(abi.EventSQDrained, q.number, 0, "")
}

// QueryQP returns state and attributes.
func (t *QPs) QueryQP(qpn uint32) (abi.QueryQPResult, abi.Status) {
	q := t.QP(qpn)
	if q == nil {
		return abi.QueryQPResult{}, abi.StatusNotFound
	}
	a := &q.attr
	r := abi.QueryQPResult{
		QPN: q.number, PeerQPN: q.peer.number, Access: a.access, State: q.state, PathMTU: a.pathMTU,
		MinRNRTimer: a.minRNRTimer, RetryCnt: a.sending.RetryCount, RNRRetry: a.rnrRetry, Timeout: a.sending.Timeout,
		MaxRdAtomic: a.maxRdAtomic, MaxDestRdAtomic: a.maxDest, PeerGID: q.peer.gid,
		PKeyIndex: a.pkeyIndex, QKey: a.qkey, SQPSN: a.sending.PSN, RQPSN: a.rqPSN,
		FlowLabel: a.path.FlowLabel, TrafficClass: a.path.TrafficClass, HopLimit: a.path.HopLimit, SL: a.path.SL,
		DMAC: a.dmac, VLAN: a.vlan, SGIDIndex: a.sgidIndex,
	}
	if q.state == abi.QPStateSQD && q.req.begun() {
		r.Draining = 1
	}
	return r, abi.StatusOK
}

// SGID is the address that the driver has the queue pair send from, none if it has not named one
// yet.
func (q *QP) SGID() [16]byte { return q.attr.sgid }

// Path is the path the driver asked for.
func (q *QP) Path() Path { return q.attr.path }
