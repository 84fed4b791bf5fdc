package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// complete is a ModifyQP that sets every attribute of mask to a good value.
func complete(qpn, mask uint32, state abi.QPState) *abi.ModifyQP {
	return &abi.ModifyQP{
		QPN: qpn, Mask: mask | abi.QPAttrState, State: state, PathMTU: abi.MTU1024, MinRNRTimer: 1, RetryCnt: 7, RNRRetry: 7, Timeout: 14,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, DestQPN: 0x123456, RQPSN: 0xffffff, SQPSN: 1, DGID: [16]byte{15: 9}, Access: abi.AccessRemoteRead, QKey: 0x11,
	}
}

var everyState = []abi.QPState{
	abi.QPStateReset, abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE, abi.QPStateErr,
}

// TestTransitions tries every change of state of the tables with no attribute, with exactly the
// required ones, with each required one left out, with each optional one, and with each that is
// neither.
func TestTransitions(t *testing.T) {
	for _, typ := range []abi.QPType{abi.QPTypeRC, abi.QPTypeUC, abi.QPTypeUD} {
		g := newGuest(t, Limits{})
		q := g.newQP(typ, nil).QP
		try := func(from, to abi.QPState, mask uint32) abi.Status {
			q.state = from
			m := complete(q.number, mask, to)
			q.peer.gid = m.DGID
			st := g.ModifyQP(0, m)
			if got := q.state; st == abi.StatusOK && got != to || st != abi.StatusOK && got != from {
				t.Fatalf("%v %v→%v: %v, but the QP is in %v", typ, from, to, st, got)
			}
			return st
		}
		for _, from := range everyState {
			for _, to := range everyState {
				var row *transition
				for i, x := range transitions(typ) {
					if x.From == from && x.To == to {
						row = &transitions(typ)[i]
					}
				}
				switch {
				case to == abi.QPStateReset:
					row = &transition{}
				case to == abi.QPStateErr && from != abi.QPStateReset:
					row = &transition{}
				}
				if row == nil {
					if st := try(from, to, 0); st != abi.StatusBadState {
						t.Errorf("%v %v→%v: %v, want wrong state", typ, from, to, st)
					}
					continue
				}
				for bit := uint32(1); bit != 0; bit <<= 1 {
					if bit == abi.QPAttrState || bit == abi.QPAttrCurState {
						continue
					}
					mask, want := row.Required|bit, abi.StatusInvalidArgument
					switch {
					case row.Required&bit != 0:
						mask = row.Required &^ bit
					case row.Optional&bit != 0:
						want = abi.StatusOK
					}
					if st := try(from, to, mask); st != want {
						t.Errorf("%v %v→%v with %#x: %v, want %v", typ, from, to, mask, st, want)
					}
				}
				if st := try(from, to, row.Required); st != abi.StatusOK {
					t.Errorf("%v %v→%v: %v", typ, from, to, st)
				}
			}
		}
	}
}
