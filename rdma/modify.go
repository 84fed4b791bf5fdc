package rdma

import (
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Sets of attributes that the table of transitions is made of.
const (
	// attrPath is what a reliable connection must know to receive.
	attrPath = abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN
	// attrRetry is what a reliable connection must know to send.
	attrRetry = abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN
	// attrConnected is what a connection made by connection management takes before it is made.
	attrConnected = abi.QPAttrPathMTU | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry |
		abi.QPAttrMaxRdAtomic | abi.QPAttrMinRNRTimer | abi.QPAttrMaxDestRdAtomic

	// attrResponder is what a connection needs beside to serve READs and receives.
	attrResponder = abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
	// attrDrained may change while the send queue is drained. A path is given again as it is: it
	// cannot change.
	attrDrained = attrInit | attrConnected&^abi.QPAttrPathMTU | abi.QPAttrCurState | abi.QPAttrAV

	attrInit = abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrAccess

	attrKnown = abi.QPAttrState | abi.QPAttrCurState | abi.QPAttrSQDNotify | attrInit | abi.QPAttrQKey | attrPath |
		attrRetry | attrConnected
)

// transition is one row of the table: what ModifyQP must and may set on the way between two states
// (InfiniBand §11.2.5.2).
type transition struct {
	from, to           abi.QPState
	required, optional uint32
}

// rcTransitions is the table of reliable connections. Connection management takes a QP from INIT to
// RTS by itself, so that INIT takes everything and needs nothing. RESET and ERR are reached from
// every state and set nothing.
var rcTransitions = []transition{
	{abi.QPStateReset, abi.QPStateInit, 0, attrInit | attrConnected},
	{abi.QPStateInit, abi.QPStateInit, 0, attrInit | attrConnected},
	{abi.QPStateInit, abi.QPStateRTR, attrPath | attrResponder, abi.QPAttrPKeyIndex | abi.QPAttrAccess},
	{abi.QPStateRTR, abi.QPStateRTS, attrRetry | abi.QPAttrMaxRdAtomic, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateRTS, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateRTS, abi.QPStateSQD, 0, abi.QPAttrSQDNotify},
	{abi.QPStateSQD, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateSQD, abi.QPStateSQD, 0, attrDrained},
}

// xrcSendTransitions and xrcRecvTransitions are the tables of the two ends of an extended reliable
// connection, of which one has no responder and the other no requester. What the other end alone
// needs is taken too: RC's table once stood for both.
var (
	xrcSendTransitions = rcTransitionsBut(
		transition{abi.QPStateInit, abi.QPStateRTR, attrPath, abi.QPAttrPKeyIndex | abi.QPAttrAccess | attrResponder},
	)
	xrcRecvTransitions = rcTransitionsBut(transition{
		abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrTimeout | abi.QPAttrSQPSN,
		abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer | attrRetry | abi.QPAttrMaxRdAtomic,
	})
)

// rcTransitionsBut is RC's table with another row.
func rcTransitionsBut(row transition) []transition {
	table := slices.Clone(rcTransitions)
	for i, t := range table {
		if t.from == row.from && t.to == row.to {
			table[i] = row
		}
	}
	return table
}

// udTransitions is the table of datagrams.
var udTransitions = []transition{
	{abi.QPStateReset, abi.QPStateInit, abi.QPAttrQKey, abi.QPAttrPKeyIndex | abi.QPAttrPort},
	{abi.QPStateInit, abi.QPStateInit, 0, abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrQKey},
	{abi.QPStateInit, abi.QPStateRTR, 0, abi.QPAttrPKeyIndex | abi.QPAttrQKey},
	{abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrSQPSN, abi.QPAttrCurState | abi.QPAttrQKey},
	{abi.QPStateRTS, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrQKey},
	{abi.QPStateRTS, abi.QPStateSQD, 0, abi.QPAttrSQDNotify},
	{abi.QPStateSQD, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrQKey},
	{abi.QPStateSQD, abi.QPStateSQD, 0, abi.QPAttrPKeyIndex | abi.QPAttrQKey | abi.QPAttrCurState},
	{abi.QPStateSQE, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrQKey},
}

// allowed checks a change of state against the table and returns the status of the command.
func allowed(table []transition, from, to abi.QPState, mask uint32) abi.Status {
	mask &^= abi.QPAttrState
	switch to {
	case abi.QPStateReset:
		return statusIf(mask != 0, abi.StatusInvalidArgument)
	case abi.QPStateErr:
		return statusIf(mask&^abi.QPAttrCurState != 0, abi.StatusInvalidArgument)
	}
	for _, t := range table {
		if t.from == from && t.to == to {
			return statusIf(mask&t.required != t.required || mask&^(t.required|t.optional) != 0, abi.StatusInvalidArgument)
		}
	}
	return abi.StatusBadState
}

// statusIf is st when bad, else StatusOK.
func statusIf(bad bool, st abi.Status) abi.Status {
	if bad {
		return st
	}
	return abi.StatusOK
}

// inRange checks the values of the attributes that m sets.
func (f *Function) inRange(m *abi.ModifyQP) bool {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	limit := uint8(f.Limits().ReadAtomic)
	return m.Mask&^uint32(attrKnown) == 0 &&
		!(has(abi.QPAttrAccess) && m.Access&^uint32(verbs.ValidAccess) != 0 ||
			has(abi.QPAttrPathMTU) && (m.PathMTU < abi.MTU256 || m.PathMTU > abi.MTU4096) ||
			has(abi.QPAttrTimeout) && m.Timeout > 31 ||
			has(abi.QPAttrRetryCnt) && m.RetryCnt > 7 ||
			has(abi.QPAttrRNRRetry) && m.RNRRetry > 7 ||
			has(abi.QPAttrMinRNRTimer) && m.MinRNRTimer > 31 ||
			has(abi.QPAttrMaxRdAtomic) && m.MaxRdAtomic > limit ||
			has(abi.QPAttrMaxDestRdAtomic) && m.MaxDestRdAtomic > limit ||
			has(abi.QPAttrPKeyIndex) && m.PKeyIndex != 0 ||
			has(abi.QPAttrSQDNotify) && m.SQDNotify > 1 ||
			has(abi.QPAttrDestQPN) && m.DestQPN > wire.QPNMask ||
			has(abi.QPAttrRQPSN) && m.RQPSN > maxPSN ||
			has(abi.QPAttrSQPSN) && m.SQPSN > maxPSN)
}

// maxPSN is the largest packet sequence number of InfiniBand.
const maxPSN = 1<<24 - 1

// ModifyQP changes state and attributes. Without a state it changes attributes as a transition from
// the state to itself. All of m is checked before anything changes.
func (f *Function) ModifyQP(now falcon.Time, m *abi.ModifyQP) abi.Status {
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
	case !f.inRange(m):
		return abi.StatusInvalidArgument
	case m.Mask&abi.QPAttrCurState != 0 && m.CurState != q.state:
		return abi.StatusInvalidArgument
	case to == abi.QPStateErr && q.state == abi.QPStateReset:
		return abi.StatusBadState
	case q.state == abi.QPStateSQD && m.Mask&abi.QPAttrAV != 0 && m.DGID != q.peerGID:
		return abi.StatusInvalidArgument // the connection is to this peer
	}
	// Drivers of before the table set the attributes of a connection whenever they liked.
	const whenever = abi.QPAttrAccess | attrConnected
	if f.Extended() || m.Mask&^whenever != 0 {
		if st := allowed(q.transitions(), q.state, to, m.Mask); st != abi.StatusOK {
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

// transitions is the table of the QP's type.
func (q *QP) transitions() []transition {
	switch q.typ {
	case abi.QPTypeUD, abi.QPTypeGSI:
		return udTransitions
	case abi.QPTypeXRCSend:
		return xrcSendTransitions
	case abi.QPTypeXRCRecv:
		return xrcRecvTransitions
	}
	return rcTransitions
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
func (q *QP) change(now falcon.Time, to abi.QPState) {
	from := q.state
	switch {
	case to == from:
	case to == abi.QPStateErr:
		q.enterErr(now)
	case to == abi.QPStateSQD:
		q.state = to
		q.polled.remove()
		q.drained(now)
	default:
		q.state = to
		q.wake()
	}
}

// drained tells the driver, once per move to SQD and if it asked, that no send is outstanding any
// more. It finds their completions then (DEV-908), also where they were kept back on purpose.
func (q *QP) drained(now falcon.Time) {
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
