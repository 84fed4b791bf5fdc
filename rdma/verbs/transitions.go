package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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
