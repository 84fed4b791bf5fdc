package verbs

import (
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
// than the timeouts of verbs programs, which expect hardware.
const leastGiveUp vtime.Time = 500e6

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

// patience is how long posted work waits at least for the peer's queue pair to get ready. Drivers
// in guests are slower than the timeouts of verbs programs, which expect hardware.
const patience vtime.Time = 8e9
