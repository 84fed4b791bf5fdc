package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// ModifyQP changes state and attributes. Without a state it changes attributes as a transition from
// the state to itself. All of m is checked before anything changes.
func (f *Function) ModifyQP(now vtime.Time, m *abi.ModifyQP) abi.Status {
	if !f.Working() {
		return abi.StatusBadState
	}
	q := f.QP(m.QPN)
	if q == nil {
		return abi.StatusNotFound
	}
	to := q.state
	if m.Mask&abi.QPAttrState != 0 {
		to = m.State
	}
	switch {
	case !verbs.InRange(f.Limits(), m):
		return abi.StatusInvalidArgument
	case m.Mask&abi.QPAttrCurState != 0 && m.CurState != q.state:
		return abi.StatusInvalidArgument
	case to == abi.QPStateErr && q.state == abi.QPStateReset:
		return abi.StatusBadState
	case q.state == abi.QPStateSQD && m.Mask&abi.QPAttrAV != 0 && m.DGID != q.peerGID:
		return abi.StatusInvalidArgument // the connection is to this peer
	}
	// Drivers of before the table set the attributes of a connection whenever they liked.
	if f.Extended() || m.Mask&^verbs.AttrWhenever != 0 {
		if st := verbs.Allowed(q.typ, q.state, to, m.Mask); st != abi.StatusOK {
			return st
		}
	}
	if to == abi.QPStateReset {
		q.reset(now)
		f.settle(now)
		return abi.StatusOK
	}
	if q.state == abi.QPStateReset && to == abi.QPStateInit {
		q.sq.Clean(abi.QueueHeaderSize)
		q.rq.Clean(abi.QueueHeaderSize)
	}
	q.set(m)
	q.change(now, to)
	f.settle(now)
	return abi.StatusOK
}

// set takes over the attributes that m names.
func (q *QP) set(m *abi.ModifyQP) {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	a := &q.attr
	for _, v := range []struct {
		bit uint32
		to  *uint8
		v   uint8
	}{
		{abi.QPAttrTimeout, &a.timeout, m.Timeout},
		{abi.QPAttrRetryCnt, &a.retryCnt, m.RetryCnt},
		{abi.QPAttrRNRRetry, &a.rnrRetry, m.RNRRetry},
		{abi.QPAttrMinRNRTimer, &a.minRNRTimer, m.MinRNRTimer},
		{abi.QPAttrMaxRdAtomic, &a.maxRdAtomic, m.MaxRdAtomic},
		{abi.QPAttrMaxDestRdAtomic, &a.maxDest, m.MaxDestRdAtomic},
	} {
		if has(v.bit) {
			*v.to = v.v
		}
	}
	q.limitReads()
	a.timed = a.timed || has(abi.QPAttrTimeout|abi.QPAttrRetryCnt)
	if has(abi.QPAttrAccess) {
		a.access = m.Access
	}
	if has(abi.QPAttrPathMTU) {
		a.pathMTU = m.PathMTU
	}
	if has(abi.QPAttrQKey) {
		a.qkey = m.QKey
	}
	if has(abi.QPAttrPKeyIndex) {
		a.pkeyIndex = m.PKeyIndex
	}
	if has(abi.QPAttrSQPSN) {
		a.sqPSN = m.SQPSN
	}
	if has(abi.QPAttrDestQPN) { // to RTR, and with it AV
		q.wired, q.peer, q.peerGID = true, m.DestQPN, m.DGID
	}
	if has(abi.QPAttrState) && m.State == abi.QPStateSQD && q.state != abi.QPStateSQD {
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
func (q *QP) drained(now vtime.Time) {
	if q.state != abi.QPStateSQD || !q.sqdNotify || q.draining() {
		return
	}
	q.sqdNotify = false
	if q.sendCQ != nil { // an XRC target has none
		q.sendCQ.Release(now)
	}
	q.fn.Event(abi.EventSQDrained, q.number, 0, "")
}

// draining reports whether works that were begun are still outstanding.
func (q *QP) draining() bool {
	r := &q.req
	return r.head != r.next || r.next != r.tail && r.work(r.next).started
}

// serving reports whether the QP takes requests of its peer.
func (q *QP) serving() bool {
	switch q.state {
	case abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE:
		return true
	}
	return false
}

// QueryQP returns state and attributes.
func (f *Function) QueryQP(qpn uint32) (abi.QueryQPResult, abi.Status) {
	q := f.QP(qpn)
	if q == nil {
		return abi.QueryQPResult{}, abi.StatusNotFound
	}
	a := &q.attr
	r := abi.QueryQPResult{
		QPN: q.number, PeerQPN: q.peer, Access: a.access, State: q.state, PathMTU: a.pathMTU,
		MinRNRTimer: a.minRNRTimer, RetryCnt: a.retryCnt, RNRRetry: a.rnrRetry, Timeout: a.timeout,
		MaxRdAtomic: a.maxRdAtomic, MaxDestRdAtomic: a.maxDest, PeerGID: q.peerGID,
		PKeyIndex: a.pkeyIndex, QKey: a.qkey, SQPSN: a.sqPSN,
	}
	if q.state == abi.QPStateSQD && q.draining() {
		r.Draining = 1
	}
	return r, abi.StatusOK
}

// SetQPPath sets the path of a queue pair before it has a connection.
func (f *Function) SetQPPath(p *abi.QPPath) abi.Status {
	if !f.Working() {
		return abi.StatusBadState
	}
	q := f.QP(p.QPN)
	if q == nil {
		return abi.StatusNotFound
	}
	path, st := verbs.PathOf(p.FlowLabel, p.TrafficClass, p.HopLimit, p.SL, p.VLAN)
	switch {
	case q.datagrams():
		return abi.StatusInvalidArgument // each has the path of its address handle
	case st != abi.StatusOK:
		return st
	case q.state != abi.QPStateInit:
		return abi.StatusBadState
	}
	q.attr.path = path
	return abi.StatusOK
}

// QueryQPPath returns what SetQPPath set.
func (f *Function) QueryQPPath(qpn uint32) (abi.QPPath, abi.Status) {
	q := f.QP(qpn)
	if q == nil {
		return abi.QPPath{}, abi.StatusNotFound
	}
	p := &q.attr.path
	return abi.QPPath{QPN: q.number, FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL}, abi.StatusOK
}

// Path is the path the driver asked for.
func (q *QP) Path() verbs.Path { return q.attr.path }
