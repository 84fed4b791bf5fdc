package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestWindowsHaveAQuotaOfTheirOwn: windows have a quota of their own, however many regions there
// may be.
func TestWindowsHaveAQuotaOfTheirOwn(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMR: 100, abi.ObjectMW: 2}})
	alloc := func(what string, c abi.AllocMW, want abi.Status) {
		t.Helper()
		if _, st := g.AllocMW(&c); st != want {
			t.Errorf("%s: %v, want %v", what, st, want)
		}
	}
	alloc("no kind", abi.AllocMW{PDN: g.pdn}, abi.StatusUnsupported)
	alloc("no such kind", abi.AllocMW{PDN: g.pdn, Type: abi.MWType2 + 1}, abi.StatusUnsupported)
	alloc("no domain", abi.AllocMW{PDN: 0x777, Type: abi.MWType1}, abi.StatusNotFound)
	alloc("type 1", abi.AllocMW{PDN: g.pdn, Type: abi.MWType1}, abi.StatusOK)
	alloc("type 2", abi.AllocMW{PDN: g.pdn, Type: abi.MWType2}, abi.StatusOK)
	alloc("a third", abi.AllocMW{PDN: g.pdn, Type: abi.MWType2}, abi.StatusNoResources)
	if st := g.DeallocPD(g.pdn); st != abi.StatusBusy {
		t.Errorf("a domain with windows: %v", st)
	}
	g.Close(0)
	alloc("after the end", abi.AllocMW{PDN: g.pdn, Type: abi.MWType1}, abi.StatusBadState)
}

// TestAWindowIsBoundByAValidRequest: a window is bound by a valid request. An invalid one changes
// nothing. (DEV-930, DEV-936)
func TestAWindowIsBoundByAValidRequest(t *testing.T) {
	const n = 64
	type stage struct {
		g        *guest
		m        *MR // that may be bound
		pd       *PD // of the request
		key      uint32
		to       Bindings
		readable *MR // without local write
	}
	length := func(n uint64) func(*stage, *abi.BindMW) { return func(_ *stage, b *abi.BindMW) { b.Length = n } }
	access := func(a uint32) func(*stage, *abi.BindMW) { return func(_ *stage, b *abi.BindMW) { b.Access = a } }
	readOnly := func(a uint32) func(*stage, *abi.BindMW) {
		return func(s *stage, b *abi.BindMW) { b.Access, b.LKey, b.Addr = a, s.readable.key, s.readable.iova }
	}
	both, neither := [2]bool{true, true}, [2]bool{}
	for name, c := range map[string]struct {
		change func(s *stage, b *abi.BindMW)
		want   [2]bool // of type 1, of type 2
	}{
		"all of the region":     {length(n), both},
		"one byte":              {length(1), both},
		"one byte too many":     {length(n + 1), neither},
		"its last byte":         {func(_ *stage, b *abi.BindMW) { b.Addr, b.Length = b.Addr+n-1, 1 }, both},
		"past its end":          {func(_ *stage, b *abi.BindMW) { b.Addr++ }, neither},
		"all rights":            {access(RemoteRights), both},
		"no rights":             {access(0), both},
		"by offsets":            {access(abi.AccessRemoteRead | abi.AccessZeroBased), [2]bool{false, true}},
		"rights of its side":    {access(abi.AccessRemoteRead | abi.AccessLocalWrite), neither},
		"reads of a region":     {readOnly(abi.AccessRemoteRead), both},
		"writes to it":          {readOnly(abi.AccessRemoteWrite), neither},
		"atomics in it":         {readOnly(abi.AccessRemoteAtomic), neither},
		"no such region":        {func(_ *stage, b *abi.BindMW) { b.LKey ^= 1 << 20 }, neither},
		"no such window":        {func(s *stage, _ *abi.BindMW) { s.key ^= 1 << 20 }, neither},
		"a region, no window":   {func(s *stage, _ *abi.BindMW) { s.key = s.m.key }, neither},
		"another domain":        {func(s *stage, _ *abi.BindMW) { s.pd = s.g.PD(s.g.newPD()) }, neither},
		"may not be bound":      {func(s *stage, b *abi.BindMW) { s.m.access &^= abi.AccessMWBind }, neither},
		"invalid region":        {func(s *stage, b *abi.BindMW) { s.m.valid = false }, neither},
		"a window on a window":  {func(s *stage, b *abi.BindMW) { b.LKey = s.g.bound(abi.MWType2, &Bindings{}, s.m).key }, neither},
		"bound already":         {func(s *stage, b *abi.BindMW) { s.g.bind(s.pd, &s.to, s.key, b) }, [2]bool{true, false}},
		"the domain of another": {func(s *stage, b *abi.BindMW) { b.LKey = s.g.region(s.g.newPD(), n, allRights).key }, neither},
	} {
		for i, typ := range []abi.MWType{abi.MWType1, abi.MWType2} {
			g := newGuest(t, Limits{})
			s := &stage{g: g, m: g.region(g.pdn, n, allRights), pd: g.PD(g.pdn), key: g.window(g.pdn, typ), readable: g.region(g.pdn, n, abi.AccessMWBind)}
			b := &abi.BindMW{Addr: s.m.iova, Length: n, LKey: s.m.key, Access: abi.AccessRemoteRead}
			c.change(s, b)
			s.key += 7
			want := abi.WCMWBindErr
			if c.want[i] {
				want = abi.WCSuccess
			}
			if st := g.bind(s.pd, &s.to, s.key, b); st != want {
				t.Errorf("%s, %v: %v, want %v", name, typ, st, want)
			}
			if want != abi.WCSuccess {
				continue
			}
			w, at := g.named(s.key), b.Addr
			if b.Access&abi.AccessZeroBased != 0 {
				at = 0
			}
			region := g.named(b.LKey)
			if w == nil || !w.usable() || w.iova != at || w.length != b.Length || w.shift != b.Addr-region.iova || region.windows != 1 || s.to.windows.Empty() != (typ == abi.MWType1) {
				t.Errorf("%s, %v: it is %+v, and the region has %d windows", name, typ, w, region.windows)
			}
		}
	}
}

// TestBindingNoBytesFreesAWindowOfType1: a window of type 1 that is bound to no bytes is free,
// whatever else the request says; one of type 2 cannot be.
func TestBindingNoBytesFreesAWindowOfType1(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	var b Bindings
	first, second := g.bound(abi.MWType1, &b, m), g.bound(abi.MWType2, &b, m)
	if st := g.bind(m.pd, &b, first.key+1, &abi.BindMW{}); st != abi.WCSuccess || first.usable() || m.windows != 1 {
		t.Errorf("type 1: %v, usable %t, %d windows", st, first.usable(), m.windows)
	}
	if g.named(first.key+1) == nil || g.named(first.key+1).usable() {
		t.Error("the new key names no free window")
	}
	if st := g.bind(m.pd, &b, second.key+1, &abi.BindMW{}); st != abi.WCMWBindErr || !second.usable() {
		t.Errorf("type 2: %v, usable %t", st, second.usable())
	}
	b.unbindAll()
	if second.usable() || m.windows != 0 {
		t.Errorf("at the end of the queue pair: usable %t, %d windows", second.usable(), m.windows)
	}
}

// TestOwnRequestsInvalidateRegionsAndBoundWindows: a queue pair's own side can invalidate a region
// of its domain without windows, and a window of type 2 that is bound to it. (DEV-931)
func TestOwnRequestsInvalidateRegionsAndBoundWindows(t *testing.T) {
	g := newGuest(t, Limits{})
	pd, other := g.PD(g.pdn), g.PD(g.newPD())
	var own, foreign Bindings
	m, busy := g.region(g.pdn, 64, 0), g.region(g.pdn, 64, allRights)
	mine, theirs := g.bound(abi.MWType2, &own, busy), g.bound(abi.MWType2, &foreign, busy)
	everybodys := g.bound(abi.MWType1, &own, busy)
	for _, c := range []struct {
		name string
		m    *MR
		want abi.WCStatus
	}{
		{"region", m, abi.WCSuccess},
		{"region that is invalid already", m, abi.WCMWBindErr},
		{"region with windows", busy, abi.WCMWBindErr},
		{"region of another domain", g.region(other.number, 64, 0), abi.WCMWBindErr},
		{"window", mine, abi.WCSuccess},
		{"window that is free already", mine, abi.WCMWBindErr},
		{"window of another queue pair", theirs, abi.WCMWBindErr},
		{"window of type 1", everybodys, abi.WCMWBindErr},
	} {
		was := c.m.usable()
		if st := g.invalidate(pd, &own, c.m.key); st != c.want || c.m.usable() != (was && st != abi.WCSuccess) {
			t.Errorf("%s: %v, usable %t", c.name, st, c.m.usable())
		}
	}
	if busy.windows != 2 || !own.windows.Empty() {
		t.Errorf("%d windows are bound", busy.windows)
	}
	if st := g.invalidate(pd, &own, 0x123456); st != abi.WCMWBindErr {
		t.Errorf("nothing: %v", st)
	}
}
