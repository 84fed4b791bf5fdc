package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAttributesOneByOne: ModifyQP sets what its mask names and nothing else, and QueryQP shows it.
func TestAttributesOneByOne(t *testing.T) {
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

// TestTimeToGiveUp: the timeout and retry count of a driver have effect from half a second on.
// Timeout 0 means for ever, and if the driver sets neither, the transport decides.
func TestTimeToGiveUp(t *testing.T) {
	const usual = vtime.Time(8) * 4096 << 14 // timeout 14, and 7 retries
	for _, c := range []struct {
		mask           uint32
		timeout, retry uint8
		want           vtime.Time
	}{
		{0, 1, 1, 0},
		{abi.QPAttrRetryCnt, 1, 7, usual},
		{abi.QPAttrTimeout, 14, 1, usual},
		{abi.QPAttrTimeout, 15, 1, 2 * usual},
		{abi.QPAttrTimeout, 1, 1, 500e6},
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

// TestModifyRefused: a command that contradicts the queue pair's type or state, or the driver's
// belief, changes nothing. (DEV-901, DEV-908)
func TestModifyRefused(t *testing.T) {
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

// TestOldDrivers: a driver older than the table may set the attributes of a connection in any
// state, and no others. A driver that knows the table must follow it.
func TestOldDrivers(t *testing.T) {
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

// TestUncleanQueues: a strict function reports to a driver that brings a queue pair out of RESET
// that indices in either of its queues are not zero. (DRV-601)
func TestUncleanQueues(t *testing.T) {
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
