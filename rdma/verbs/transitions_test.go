package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTransitionTable checks the important rows of the table against its own list, because a row
// lost by mistake would not be tested. (DEV-901, DEV-907)
func TestTransitionTable(t *testing.T) {
	for _, c := range []struct {
		name     string
		typ      abi.QPType
		from, to abi.QPState
		mask     uint32
		want     abi.Status
	}{
		{"RC to RTR without a peer", abi.QPTypeRC, abi.QPStateInit, abi.QPStateRTR, abi.QPAttrPathMTU, abi.StatusInvalidArgument},
		{"RC to RTR", abi.QPTypeRC, abi.QPStateInit, abi.QPStateRTR, abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer, abi.StatusOK},
		{"RC to RTS", abi.QPTypeRC, abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic, abi.StatusOK},
		{"RC from INIT to RTS", abi.QPTypeRC, abi.QPStateInit, abi.QPStateRTS, 0, abi.StatusBadState},
		{"RC has no Q_Key", abi.QPTypeRC, abi.QPStateReset, abi.QPStateInit, abi.QPAttrQKey, abi.StatusInvalidArgument},
		{"UC to RTR", abi.QPTypeUC, abi.QPStateInit, abi.QPStateRTR, abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN, abi.StatusOK},
		{"UC serves no READs", abi.QPTypeUC, abi.QPStateInit, abi.QPStateRTR, AttrPath | abi.QPAttrMaxDestRdAtomic, abi.StatusInvalidArgument},
		{"UC to RTS", abi.QPTypeUC, abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrSQPSN, abi.StatusOK},
		{"UC has no retries", abi.QPTypeUC, abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrSQPSN | abi.QPAttrRetryCnt, abi.StatusInvalidArgument},
		{"UC out of SQE", abi.QPTypeUC, abi.QPStateSQE, abi.QPStateRTS, 0, abi.StatusOK},
		{"UD needs one", abi.QPTypeUD, abi.QPStateReset, abi.QPStateInit, 0, abi.StatusInvalidArgument},
		{"UD to RTR", abi.QPTypeUD, abi.QPStateInit, abi.QPStateRTR, 0, abi.StatusOK},
		{"UD to RTS", abi.QPTypeUD, abi.QPStateRTR, abi.QPStateRTS, abi.QPAttrSQPSN, abi.StatusOK},
		{"UD out of SQE", abi.QPTypeUD, abi.QPStateSQE, abi.QPStateRTS, 0, abi.StatusOK},
		{"RC out of SQE", abi.QPTypeRC, abi.QPStateSQE, abi.QPStateRTS, 0, abi.StatusBadState},
		{"drain", abi.QPTypeRC, abi.QPStateRTS, abi.QPStateSQD, abi.QPAttrSQDNotify, abi.StatusOK},
		{"retries while drained", abi.QPTypeRC, abi.QPStateSQD, abi.QPStateSQD, abi.QPAttrRNRRetry | abi.QPAttrMaxRdAtomic, abi.StatusOK},
		{"retries while sending", abi.QPTypeRC, abi.QPStateRTS, abi.QPStateRTS, abi.QPAttrRNRRetry, abi.StatusInvalidArgument},
		{"from ERR to RTS", abi.QPTypeRC, abi.QPStateErr, abi.QPStateRTS, 0, abi.StatusBadState},
		{"RESET sets nothing", abi.QPTypeRC, abi.QPStateRTS, abi.QPStateReset, abi.QPAttrAccess, abi.StatusInvalidArgument},
	} {
		if st := allowed(c.typ, c.from, c.to, c.mask|abi.QPAttrState); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
}

// TestAttributeLimits: the largest value of each attribute passes, one more does not.
func TestAttributeLimits(t *testing.T) {
	limits := Limits{ReadAtomic: 5}
	for name, c := range map[string]struct {
		mask uint32
		set  func(m *abi.ModifyQP, v uint32)
		most uint32
	}{
		"Timeout":         {abi.QPAttrTimeout, func(m *abi.ModifyQP, v uint32) { m.Timeout = uint8(v) }, 31},
		"RetryCnt":        {abi.QPAttrRetryCnt, func(m *abi.ModifyQP, v uint32) { m.RetryCnt = uint8(v) }, 7},
		"RNRRetry":        {abi.QPAttrRNRRetry, func(m *abi.ModifyQP, v uint32) { m.RNRRetry = uint8(v) }, 7},
		"MinRNRTimer":     {abi.QPAttrMinRNRTimer, func(m *abi.ModifyQP, v uint32) { m.MinRNRTimer = uint8(v) }, 31},
		"MaxRdAtomic":     {abi.QPAttrMaxRdAtomic, func(m *abi.ModifyQP, v uint32) { m.MaxRdAtomic = uint8(v) }, 5},
		"MaxDestRdAtomic": {abi.QPAttrMaxDestRdAtomic, func(m *abi.ModifyQP, v uint32) { m.MaxDestRdAtomic = uint8(v) }, 5},
		"PathMTU":         {abi.QPAttrPathMTU, func(m *abi.ModifyQP, v uint32) { m.PathMTU = abi.PathMTU(v) }, uint32(abi.MTU4096)},
		"PKeyIndex":       {abi.QPAttrPKeyIndex, func(m *abi.ModifyQP, v uint32) { m.PKeyIndex = uint16(v) }, 0},
		"SQDNotify":       {abi.QPAttrSQDNotify, func(m *abi.ModifyQP, v uint32) { m.SQDNotify = uint8(v) }, 1},
		"DestQPN":         {abi.QPAttrDestQPN, func(m *abi.ModifyQP, v uint32) { m.DestQPN = v }, 0xffffff},
		"RQPSN":           {abi.QPAttrRQPSN, func(m *abi.ModifyQP, v uint32) { m.RQPSN = v }, 0xffffff},
		"SQPSN":           {abi.QPAttrSQPSN, func(m *abi.ModifyQP, v uint32) { m.SQPSN = v }, 0xffffff},
	} {
		m := abi.ModifyQP{Mask: c.mask}
		if c.set(&m, c.most); !inRange(&limits, &m) {
			t.Errorf("%s %d is refused", name, c.most)
		}
		if c.set(&m, c.most+1); inRange(&limits, &m) {
			t.Errorf("%s %d passes", name, c.most+1)
		}
	}
	if m := (abi.ModifyQP{Mask: abi.QPAttrPathMTU, PathMTU: abi.MTU256 - 1}); inRange(&limits, &m) {
		t.Error("a path MTU below the least passes")
	}
}
