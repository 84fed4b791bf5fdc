package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestModifyQPSetsWhatItsMaskNames: ModifyQP sets what its mask names and nothing else, and QueryQP
// shows it.
func TestModifyQPSetsWhatItsMaskNames(t *testing.T) {
	g := newGuest(t, Limits{})
	g.SetGID(7, gid(1))
	values := abi.ModifyQP{
		Access: 0x3, PathMTU: abi.MTU512, MinRNRTimer: 3, RetryCnt: 2, RNRRetry: 1, Timeout: 9, MaxRdAtomic: 4, MaxDestRdAtomic: 5,
		QKey: 0x1234, SQPSN: 0x111, RQPSN: 0x222, DestQPN: 0x333, DGID: gid(2), FlowLabel: 0x444, TrafficClass: 0x54, HopLimit: 6, SL: 7,
		DMAC: [6]byte{2, 3}, VLAN: abi.NoVLAN, SGIDIndex: 7,
	}
	for name, c := range map[string]struct {
		mask uint32
		set  func(r *abi.QueryQPResult)
	}{
		"nothing":   {0, func(*abi.QueryQPResult) {}},
		"access":    {abi.QPAttrAccess, func(r *abi.QueryQPResult) { r.Access = 0x3 }},
		"path MTU":  {abi.QPAttrPathMTU, func(r *abi.QueryQPResult) { r.PathMTU = abi.MTU512 }},
		"RNR timer": {abi.QPAttrMinRNRTimer, func(r *abi.QueryQPResult) { r.MinRNRTimer = 3 }},
		"retries":   {abi.QPAttrRetryCnt, func(r *abi.QueryQPResult) { r.RetryCnt = 2 }},
		"RNR":       {abi.QPAttrRNRRetry, func(r *abi.QueryQPResult) { r.RNRRetry = 1 }},
		"timeout":   {abi.QPAttrTimeout, func(r *abi.QueryQPResult) { r.Timeout = 9 }},
		"READs":     {abi.QPAttrMaxRdAtomic, func(r *abi.QueryQPResult) { r.MaxRdAtomic = 4 }},
		"served":    {abi.QPAttrMaxDestRdAtomic, func(r *abi.QueryQPResult) { r.MaxDestRdAtomic = 5 }},
		"Q_Key":     {abi.QPAttrQKey, func(r *abi.QueryQPResult) { r.QKey = 0x1234 }},
		"SQ PSN":    {abi.QPAttrSQPSN, func(r *abi.QueryQPResult) { r.SQPSN = 0x111 }},
		"RQ PSN":    {abi.QPAttrRQPSN, func(r *abi.QueryQPResult) { r.RQPSN = 0x222 }},
		"peer": {abi.QPAttrDestQPN, func(r *abi.QueryQPResult) {
			r.PeerQPN, r.PeerGID = 0x333, gid(2)
		}},
		"path": {abi.QPAttrAV, func(r *abi.QueryQPResult) {
			r.FlowLabel, r.TrafficClass, r.HopLimit, r.SL, r.DMAC, r.VLAN, r.SGIDIndex = 0x444, 0x54, 6, 7, [6]byte{2, 3}, abi.NoVLAN, 7
		}},
		"two": {abi.QPAttrTimeout | abi.QPAttrQKey, func(r *abi.QueryQPResult) { r.Timeout, r.QKey = 9, 0x1234 }},
	} {
		s := g.newQP(abi.QPTypeRC, nil)
		want, st := g.QueryQP(s.number)
		g.good(st)
		c.set(&want)
		m := values
		m.Mask = c.mask
		s.set(&m)
		if got, _ := g.QueryQP(s.number); got != want {
			t.Errorf("%s: %+v\nwant %+v", name, got, want)
		}
		_, _, wired := s.Wired()
		if sgid := s.SGID(); wired != (c.mask == abi.QPAttrDestQPN) || (sgid == gid(1)) != (c.mask == abi.QPAttrAV) {
			t.Errorf("%s: wired %t, from % x", name, wired, sgid)
		}
		if c.mask == abi.QPAttrAV && s.Path() != (Path{FlowLabel: 0x444, TrafficClass: 0x54, HopLimit: 6, SL: 7}) {
			t.Errorf("path %+v", s.Path())
		}
		g.good(g.DestroyQP(0, s.number))
	}
}

// TestTheDriversRetriesAreLimitedBelow: the timeout and retry count of a driver have effect from
// two seconds on. Timeout 0 means for ever, and if the driver sets neither, the transport
// decides.
func TestTheDriversRetriesAreLimitedBelow(t *testing.T) {
	const long = vtime.Time(8) * 4096 << 17 // timeout 17, and 7 retries
	for _, c := range []struct {
		mask           uint32
		timeout, retry uint8
		want           vtime.Time
	}{
		{0, 1, 1, 0},
		{abi.QPAttrRetryCnt, 1, 7, leastGiveUp},
		{abi.QPAttrTimeout, 17, 1, long},
		{abi.QPAttrTimeout, 18, 1, 2 * long},
		{abi.QPAttrTimeout, 1, 1, leastGiveUp},
		{abi.QPAttrTimeout, 0, 1, vtime.Never},
		{abi.QPAttrTimeout | abi.QPAttrRetryCnt, 20, 0, 4096 << 20},
	} {
		a := defaultAttributes(&Limits{ReadAtomic: 1})
		a.set(&abi.ModifyQP{Mask: c.mask, Timeout: c.timeout, RetryCnt: c.retry})
		a.set(&abi.ModifyQP{}) // changes nothing
		if got := a.retryTime(); got != c.want {
			t.Errorf("timeout %d, %d retries, of mask %#x: %d, want %d", c.timeout, c.retry, c.mask, got, c.want)
		}
	}
}

// TestARefusedModifyQPChangesNothing: a command that contradicts the queue pair's type or state, or
// the driver's belief, changes nothing. (DEV-901, DEV-908)
func TestARefusedModifyQPChangesNothing(t *testing.T) {
	v6 := [16]byte{0: 0xfe, 1: 0x80, 15: 1}
	for _, c := range []struct {
		name  string
		state abi.QPState
		m     abi.ModifyQP
		want  abi.Status
	}{
		{"a belief", abi.QPStateRTS, abi.ModifyQP{Mask: abi.QPAttrCurState, CurState: abi.QPStateRTS}, abi.StatusOK},
		{"a wrong belief", abi.QPStateRTS, abi.ModifyQP{Mask: abi.QPAttrCurState, CurState: abi.QPStateSQD}, abi.StatusInvalidArgument},
		{"ERR", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr}, abi.StatusOK},
		{"ERR from RESET", abi.QPStateReset, abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr}, abi.StatusBadState},
		{"path", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9)}, abi.StatusOK},
		{"path in a VLAN", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9), VLAN: 1}, abi.StatusUnsupported},
		{"no VLAN", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9), VLAN: abi.NoVLAN}, abi.StatusOK},
		{"a VLAN that is not set", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrPKeyIndex, VLAN: 1}, abi.StatusOK},
		{"path from nowhere", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9), SGIDIndex: 9}, abi.StatusInvalidArgument},
		{"nowhere, that is not set", abi.QPStateInit, abi.ModifyQP{Mask: abi.QPAttrPKeyIndex, SGIDIndex: 9}, abi.StatusOK},
		{"the path again", abi.QPStateSQD, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9)}, abi.StatusOK},
		{"another peer", abi.QPStateSQD, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(8)}, abi.StatusInvalidArgument},
		{"another address", abi.QPStateSQD, abi.ModifyQP{Mask: abi.QPAttrAV, DGID: gid(9), SGIDIndex: 2}, abi.StatusInvalidArgument},
		{"an address that is not set", abi.QPStateSQD, abi.ModifyQP{Mask: abi.QPAttrAccess, DGID: gid(8)}, abi.StatusOK},
		{"peer of the other IP", abi.QPStateInit, abi.ModifyQP{
			Mask: abi.QPAttrState | AttrPath | attrResponder, State: abi.QPStateRTR, DGID: v6, SGIDIndex: 2, PathMTU: abi.MTU256,
		}, abi.StatusInvalidArgument},
		{"peer of the same", abi.QPStateInit, abi.ModifyQP{
			Mask: abi.QPAttrState | AttrPath | attrResponder, State: abi.QPStateRTR, DGID: gid(9), SGIDIndex: 2, PathMTU: abi.MTU256,
		}, abi.StatusOK},
	} {
		g := newGuest(t, Limits{})
		g.SetGID(2, gid(1))
		s := g.newQP(abi.QPTypeRC, nil)
		s.state, s.peer.gid = c.state, gid(9)
		c.m.QPN = s.number
		if st := g.ModifyQP(0, &c.m); st != c.want || st != abi.StatusOK && s.State() != c.state {
			t.Errorf("%s: %v, want %v; QP in %v", c.name, st, c.want, s.State())
		}
	}
	g := newGuest(t, Limits{})
	s := g.newQP(abi.QPTypeRC, nil)
	g.Close(0)
	if st := g.ModifyQP(0, &abi.ModifyQP{QPN: s.number}); st != abi.StatusBadState {
		t.Errorf("of a function that has ended: %v", st)
	}
}

// TestOldDriversSetConnectionAttributesInAnyState: a driver older than the table may set the
// attributes of a connection in any state, and no others. A driver that knows the table must follow
// it.
func TestOldDriversSetConnectionAttributesInAnyState(t *testing.T) {
	for _, c := range []struct {
		mask uint32
		want abi.Status
	}{
		{abi.QPAttrRNRRetry, abi.StatusOK},
		{abi.QPAttrRNRRetry | abi.QPAttrAccess, abi.StatusOK},
		{abi.QPAttrRNRRetry | abi.QPAttrPKeyIndex, abi.StatusInvalidArgument},
	} {
		for _, features := range []uint64{0, abi.FeatureExtendedVerbs} {
			g := newGuest(t, Limits{})
			s := g.newRC(nil)
			g.UseFeatures(features)
			want := c.want
			if features != 0 {
				want = abi.StatusInvalidArgument
			}
			if st := g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: c.mask}); st != want {
				t.Errorf("features %#x, mask %#x: %v, want %v", features, c.mask, st, want)
			}
		}
	}
}

// TestAStrictFunctionReportsIndicesThatAreNotZero: a strict function reports to a driver that
// brings a queue pair out of RESET that indices in either of its queues are not zero. (DRV-601)
func TestAStrictFunctionReportsIndicesThatAreNotZero(t *testing.T) {
	for _, dirty := range []bool{false, true} {
		g := newGuest(t, Limits{})
		s := g.newQP(abi.QPTypeRC, nil)
		s.reset(0)
		if dirty {
			s.sendMem[5] = 1
		}
		s.sendMem[abi.QueueHeaderSize] = 1 // an entry, which may be anything
		g.UseStrict(true)
		g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number, Mask: abi.QPAttrState, State: abi.QPStateInit}))
		if v := g.violations; (len(v) == 1) != dirty || dirty && (v[0].Clause != 601 || v[0].Index != 5 || v[0].Ring != abi.RingSQ) {
			t.Errorf("dirty %t: %+v", dirty, v)
		}
		g.violations = nil
		g.good(g.ModifyQP(0, &abi.ModifyQP{QPN: s.number}))
		if len(g.violations) != 0 {
			t.Errorf("in INIT: %+v", g.violations)
		}
	}
}

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

// TestEveryTransitionNeedsItsAttributesAndNoOthers tries every change of state of the tables with
// no attribute, with exactly the required ones, with each required one left out, with each optional
// one, and with each that is neither.
func TestEveryTransitionNeedsItsAttributesAndNoOthers(t *testing.T) {
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

// TestTheTableHasTheTransitionsOfInfiniBand checks the important rows of the table against its own
// list, because a row lost by mistake would not be tested. (DEV-901, DEV-907)
func TestTheTableHasTheTransitionsOfInfiniBand(t *testing.T) {
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

// TestAttributesHaveMaxima: the largest value of each attribute passes, one more does not.
func TestAttributesHaveMaxima(t *testing.T) {
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
