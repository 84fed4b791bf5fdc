package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ModifyQP changes the state and attributes of a QP. Without a state it changes attributes like a
// transition from the current state to itself. All of m is checked before anything changes.
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
		return abi.StatusInvalidArgument // the connection is between these two addresses
	}
	// Drivers older than the table of transitions set the attributes of a connection in any state.
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

// set stores the attributes that m names.
func (q *QP) set(m *abi.ModifyQP) {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	q.attr.set(m)
	if has(abi.QPAttrAV) {
		q.attr.sgid, _ = q.owner.GID(m.SGIDIndex)
	}
	q.limitReads()
	if has(abi.QPAttrDestQPN) { // only on the way to RTR, together with AV
		q.peer.wired, q.peer.number, q.peer.gid = true, m.DestQPN, m.DGID
	}
	if q.state != abi.QPStateSQD { // requested with the move to SQD; not used in other states
		q.sqdNotify = has(abi.QPAttrSQDNotify) && m.SQDNotify == 1
	}
}

// change moves the QP to a state that the table of transitions allows.
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

// drained tells the driver that no send is outstanding any more, once per move to SQD and only if
// the driver asked for it. The completions of the sends are written before (DEV-908), also those
// that Faults held back.
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

// QueryQP returns the state and attributes of a QP.
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

// SGID returns the address that the driver chose for the queue pair to send from, zero if it has
// not chosen one yet.
func (q *QP) SGID() [16]byte { return q.attr.sgid }

// Path returns the path that the driver asked for.
func (q *QP) Path() Path { return q.attr.path }
