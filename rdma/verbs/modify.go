package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// attributes holds what ModifyQP sets, with the meaning and units of ibv_qp_attr.
type attributes struct {
	access      uint32 // abi.Access bits allowed to the peer
	pathMTU     abi.PathMTU
	minRNRTimer uint8
	rnrRetry    uint8
	maxRdAtomic uint8
	maxDest     uint8
	timed       bool // the driver set timeout or retryCnt
	pkeyIndex   uint16
	qkey        uint32
	rqPSN       uint32
	sending     transport.Sending
	path        Path
	dmac        [6]byte // as given by the driver, like the next two
	vlan        uint16
	sgidIndex   uint8
	sgid        [16]byte // the address of that GID table entry when it was set
}

// defaultAttributes returns the attributes that hold until ModifyQP changes them.
func defaultAttributes(l *Limits) attributes {
	n := uint8(l.ReadAtomic)
	return attributes{minRNRTimer: 12, rnrRetry: 7, maxRdAtomic: n, maxDest: n, sending: transport.Sending{Timeout: 14, RetryCount: 7}}
}

// set stores the attributes that m names.
func (a *attributes) set(m *abi.ModifyQP) {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	for _, v := range []struct {
		bit uint32
		to  *uint8
		v   uint8
	}{
		{abi.QPAttrTimeout, &a.sending.Timeout, m.Timeout},
		{abi.QPAttrRetryCnt, &a.sending.RetryCount, m.RetryCnt},
		{abi.QPAttrRNRRetry, &a.rnrRetry, m.RNRRetry},
		{abi.QPAttrMinRNRTimer, &a.minRNRTimer, m.MinRNRTimer},
		{abi.QPAttrMaxRdAtomic, &a.maxRdAtomic, m.MaxRdAtomic},
		{abi.QPAttrMaxDestRdAtomic, &a.maxDest, m.MaxDestRdAtomic},
	} {
		if has(v.bit) {
			*v.to = v.v
		}
	}
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
		a.sending.PSN = m.SQPSN
	}
	if has(abi.QPAttrAV) {
		a.path, _ = pathOf(m.FlowLabel, m.TrafficClass, m.HopLimit, m.SL, m.VLAN)
		a.dmac, a.vlan, a.sgidIndex = m.DMAC, m.VLAN, m.SGIDIndex
	}
	if has(abi.QPAttrRQPSN) {
		a.rqPSN = m.RQPSN
	}
}

// leastGiveUp is the minimum of RetryTime. Hosts without real-time scheduling may stall for longer
// than the timeouts of verbs programs, which expect hardware. It is about four times what programs
// usually set (14 and 7), as long as a timeout may take (IBA §9.7.6.1.3).
const leastGiveUp vtime.Time = 2e9

// retryTime implements QP.RetryTime.
func (a *attributes) retryTime() vtime.Time {
	switch {
	case !a.timed:
		return 0
	case a.sending.Timeout == 0:
		return vtime.Never
	default:
		return max(vtime.Time(a.sending.RetryCount+1)*4096<<a.sending.Timeout, leastGiveUp)
	}
}

// Sets of attributes that the tables of transitions use.
const (
	// AttrPath holds what a reliable connection must know to receive.
	AttrPath = abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN
	// AttrRetry holds what a reliable connection must know to send.
	AttrRetry = abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN
	// attrConnected holds what can be set before connection management makes the connection.
	attrConnected = abi.QPAttrPathMTU | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry |
		abi.QPAttrMaxRdAtomic | abi.QPAttrMinRNRTimer | abi.QPAttrMaxDestRdAtomic

	// attrResponder holds what a connection needs besides to serve READs and receives.
	attrResponder = abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
	// attrDrained holds what may change while the send queue is drained. A path may be given again
	// but must be the same.
	attrDrained = attrInit | attrConnected&^abi.QPAttrPathMTU | abi.QPAttrCurState | abi.QPAttrAV

	// AttrWhenever holds what drivers older than the tables set in any state.
	AttrWhenever = abi.QPAttrAccess | attrConnected

	attrInit = abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrAccess

	attrKnown = abi.QPAttrState | abi.QPAttrCurState | abi.QPAttrSQDNotify | attrInit | abi.QPAttrQKey | AttrPath |
		AttrRetry | attrConnected
)

// transition is one row of a table: the attributes that ModifyQP must and may set in the move
// between two states (InfiniBand §11.2.5.2).
type transition struct {
	From, To           abi.QPState
	Required, Optional uint32
}

// rcTransitions is the table of reliable connections. Connection management takes a QP from INIT to
// RTS by itself, so INIT accepts all attributes and requires none. RESET and ERR can be reached
// from every state and set nothing.
var rcTransitions = []transition{
	{abi.QPStateReset, abi.QPStateInit, 0, attrInit | attrConnected | abi.QPAttrAV},
	{abi.QPStateInit, abi.QPStateInit, 0, attrInit | attrConnected | abi.QPAttrAV},
	{abi.QPStateInit, abi.QPStateRTR, AttrPath | attrResponder, abi.QPAttrPKeyIndex | abi.QPAttrAccess},
	{abi.QPStateRTR, abi.QPStateRTS, AttrRetry | abi.QPAttrMaxRdAtomic, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateRTS, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateRTS, abi.QPStateSQD, 0, abi.QPAttrSQDNotify},
	{abi.QPStateSQD, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer},
	{abi.QPStateSQD, abi.QPStateSQD, 0, attrDrained},
}

// xrcSendTransitions and xrcRecvTransitions are the tables of the two ends of an extended reliable
// connection. One end has no responder, the other no requester. Attributes that only the other end
// needs are accepted too, because the table of RC was once used for both.
var (
	xrcSendTransitions = rcTransitionsBut(
		transition{abi.QPStateInit, abi.QPStateRTR, AttrPath, abi.QPAttrPKeyIndex | abi.QPAttrAccess | attrResponder},
	)
	xrcRecvTransitions = rcTransitionsBut(transition{
		abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrTimeout | abi.QPAttrSQPSN,
		abi.QPAttrCurState | abi.QPAttrAccess | abi.QPAttrMinRNRTimer | AttrRetry | abi.QPAttrMaxRdAtomic,
	})
)

// rcTransitionsBut returns the table of RC with one row replaced.
func rcTransitionsBut(row transition) []transition {
	table := slices.Clone(rcTransitions)
	for i, t := range table {
		if t.From == row.From && t.To == row.To {
			table[i] = row
		}
	}
	return table
}

// ucTransitions is the table of unreliable connections. They have no retries; connection management
// may set only their path MTU.
var ucTransitions = []transition{
	{abi.QPStateReset, abi.QPStateInit, 0, attrInit | abi.QPAttrPathMTU | abi.QPAttrAV},
	{abi.QPStateInit, abi.QPStateInit, 0, attrInit | abi.QPAttrPathMTU | abi.QPAttrAV},
	{abi.QPStateInit, abi.QPStateRTR, AttrPath, abi.QPAttrPKeyIndex | abi.QPAttrAccess},
	{abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrSQPSN, abi.QPAttrCurState | abi.QPAttrAccess},
	{abi.QPStateRTS, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess},
	{abi.QPStateRTS, abi.QPStateSQD, 0, abi.QPAttrSQDNotify},
	{abi.QPStateSQD, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess},
	{abi.QPStateSQD, abi.QPStateSQD, 0, attrInit | abi.QPAttrCurState | abi.QPAttrAV},
	{abi.QPStateSQE, abi.QPStateRTS, 0, abi.QPAttrCurState | abi.QPAttrAccess},
}

// udTransitions is the table of datagram queue pairs.
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

// transitions returns the table of a type of queue pairs.
func transitions(typ abi.QPType) []transition {
	switch typ {
	case abi.QPTypeUD, abi.QPTypeGSI:
		return udTransitions
	case abi.QPTypeUC:
		return ucTransitions
	case abi.QPTypeXRCSend:
		return xrcSendTransitions
	case abi.QPTypeXRCRecv:
		return xrcRecvTransitions
	}
	return rcTransitions
}

// allowed checks a change of state of a queue pair against the table of its type and returns the
// status of the command.
func allowed(typ abi.QPType, from, to abi.QPState, mask uint32) abi.Status {
	mask &^= abi.QPAttrState
	switch to {
	case abi.QPStateReset:
		return statusIf(mask != 0, abi.StatusInvalidArgument)
	case abi.QPStateErr:
		return statusIf(mask&^abi.QPAttrCurState != 0, abi.StatusInvalidArgument)
	}
	for _, t := range transitions(typ) {
		if t.From == from && t.To == to {
			return statusIf(mask&t.Required != t.Required || mask&^(t.Required|t.Optional) != 0, abi.StatusInvalidArgument)
		}
	}
	return abi.StatusBadState
}

// statusIf returns st if bad, else StatusOK.
func statusIf(bad bool, st abi.Status) abi.Status {
	if bad {
		return st
	}
	return abi.StatusOK
}

// inRange reports whether the attributes that m sets are known and have valid values.
func inRange(l *Limits, m *abi.ModifyQP) bool {
	has := func(bit uint32) bool { return m.Mask&bit != 0 }
	limit := uint8(l.ReadAtomic)
	return m.Mask&^uint32(attrKnown) == 0 &&
		!(has(abi.QPAttrAccess) && m.Access&^uint32(validAccess) != 0 ||
			has(abi.QPAttrPathMTU) && (m.PathMTU < abi.MTU256 || m.PathMTU > abi.MTU4096) ||
			has(abi.QPAttrTimeout) && m.Timeout > 31 ||
			has(abi.QPAttrRetryCnt) && m.RetryCnt > 7 ||
			has(abi.QPAttrRNRRetry) && m.RNRRetry > 7 ||
			has(abi.QPAttrMinRNRTimer) && m.MinRNRTimer > 31 ||
			has(abi.QPAttrMaxRdAtomic) && m.MaxRdAtomic > limit ||
			has(abi.QPAttrMaxDestRdAtomic) && m.MaxDestRdAtomic > limit ||
			has(abi.QPAttrPKeyIndex) && m.PKeyIndex != 0 ||
			has(abi.QPAttrSQDNotify) && m.SQDNotify > 1 ||
			has(abi.QPAttrDestQPN) && m.DestQPN > maxQPN ||
			has(abi.QPAttrRQPSN) && m.RQPSN > maxPSN ||
			has(abi.QPAttrSQPSN) && m.SQPSN > maxPSN ||
			has(abi.QPAttrAV) && (m.FlowLabel >= 1<<20 || m.SL > 15))
}

// Queue pair numbers and packet sequence numbers have 24 bits in InfiniBand.
const maxQPN, maxPSN = 1<<24 - 1, 1<<24 - 1

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
	case m.Mask&abi.QPAttrAV != 0 && !has, m.Mask&abi.QPAttrDestQPN != 0 && !sameVersion(sgid, m.DGID):
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
		q.send.queue.clean(abi.QueueHeaderSize)
		q.recv.queue.clean(abi.QueueHeaderSize)
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
	if q.state == abi.QPStateSQD && q.send.works.begun() {
		r.Draining = 1
	}
	return r, abi.StatusOK
}

// SGID returns the address that the driver chose for the queue pair to send from, zero if it has
// not chosen one yet.
func (q *QP) SGID() [16]byte { return q.attr.sgid }

// Path returns the path that the driver asked for.
func (q *QP) Path() Path { return q.attr.path }
