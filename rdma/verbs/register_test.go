package verbs

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTranslationsMustBeValid: the addresses of a region are valid if it has bytes, ends within the
// address space, and begins in its first page, whose size must be supported.
func TestTranslationsMustBeValid(t *testing.T) {
	for _, c := range []struct {
		name string
		iova uint64
		span queues.Span
		bad  bool
	}{
		{"one byte", 0, queues.Span{Length: 1}, false},
		{"one byte elsewhere", 0x1000, queues.Span{Length: 1}, false},
		{"the last byte there is", 1<<64 - 1, queues.Span{Length: 1}, false},
		{"one byte too many", 1<<64 - 1, queues.Span{Length: 2}, true},
		{"up to the end", 1<<64 - 4096, queues.Span{Length: 4096}, false},
		{"past the end", 1<<64 - 4096, queues.Span{Length: 4097}, true},
		{"no bytes", 0x1000, queues.Span{}, true},
		{"smallest pages", 0, queues.Span{Length: 1, PageShift: abi.MinPageShift}, false},
		{"smaller", 0, queues.Span{Length: 1, PageShift: abi.MinPageShift - 1}, true},
		{"largest pages", 0, queues.Span{Length: 1, PageShift: abi.MaxPageShift}, false},
		{"larger", 0, queues.Span{Length: 1, PageShift: abi.MaxPageShift + 1}, true},
		{"end of the first page", 0, queues.Span{Length: 1, Offset: abi.PageSize - 1}, false},
		{"second page", 0, queues.Span{Length: 1, Offset: abi.PageSize}, true},
		{"the same in larger pages", 0, queues.Span{Length: 1, Offset: abi.PageSize, PageShift: 13}, false},
	} {
		if got := badTranslation(c.iova, &c.span); got != c.bad {
			t.Errorf("%s: bad %t", c.name, got)
		}
	}
}

// TestRightsMustBeKnownAndConsistent: unknown rights are refused, and so are rights of peers to
// write if the region's own side does not have them.
func TestRightsMustBeKnownAndConsistent(t *testing.T) {
	for _, c := range []struct {
		access uint32
		bad    bool
	}{
		{0, false},
		{validAccess, false},
		{validAccess | 1<<30, true},
		{1 << 30, true},
		{abi.AccessLocalWrite, false},
		{abi.AccessRemoteRead | abi.AccessMWBind, false},
		{abi.AccessRemoteWrite, true},
		{abi.AccessRemoteAtomic, true},
		{abi.AccessRemoteWrite | abi.AccessLocalWrite, false},
		{abi.AccessRemoteAtomic | abi.AccessLocalWrite, false},
	} {
		if got := badAccess(c.access); got != c.bad {
			t.Errorf("%#x: bad %t", c.access, got)
		}
	}
}

// TestAZeroBasedRegionHasNoAddress: a region that is named by offsets has no address, whichever of
// the two changes.
func TestAZeroBasedRegionHasNoAddress(t *testing.T) {
	g := newGuest(t, Limits{})
	at := g.pages(1)
	list := g.run(at, 1)
	reg := func(iova uint64, access uint32) (uint32, abi.Status) {
		key, _, st := g.RegMR(&abi.RegMR{PDN: g.pdn, IOVA: iova, Access: access, Length: 8, Pages: list, Levels: 1})
		return key, st
	}
	if _, st := reg(0x1000, abi.AccessZeroBased); st != abi.StatusInvalidArgument {
		t.Errorf("zero based at an address: %v", st)
	}
	offsets, st := reg(0, abi.AccessZeroBased)
	g.good(st)
	zero, st := reg(0, 0)
	g.good(st)
	addressed, st := reg(0x1000, 0)
	g.good(st)
	for _, c := range []struct {
		name string
		r    abi.ReregMR
		want abi.Status
	}{
		{"by offsets, gets an address", abi.ReregMR{LKey: offsets, Mask: abi.ReregTranslation, IOVA: 0x1000}, abi.StatusInvalidArgument},
		{"by offsets, other memory", abi.ReregMR{LKey: offsets, Mask: abi.ReregTranslation}, abi.StatusOK},
		{"at 0, by offsets", abi.ReregMR{LKey: zero, Mask: abi.ReregAccess, Access: abi.AccessZeroBased}, abi.StatusOK},
		{"at an address, by offsets", abi.ReregMR{LKey: addressed, Mask: abi.ReregAccess, Access: abi.AccessZeroBased}, abi.StatusInvalidArgument},
		{"at an address, to another", abi.ReregMR{LKey: addressed, Mask: abi.ReregTranslation, IOVA: 0x2000}, abi.StatusOK},
	} {
		c.r.Length, c.r.Pages, c.r.Levels = 8, list, 1
		if _, st := g.StartReregMR(&c.r); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
}

// TestRegistrationsInProgressCount: regions whose page lists are being read count, and hold their
// domain. If the quota was lowered meanwhile, the region is not made, and everything it held is
// returned.
func TestRegistrationsInProgressCount(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMR: 2, abi.ObjectMW: 50}})
	list := g.run(g.pages(1), 1)
	start := func(want abi.Status) *Registration {
		t.Helper()
		r, st := g.StartRegMR(&abi.RegMR{PDN: g.pdn, Length: 8, Pages: list, Levels: 1})
		if st != want {
			t.Fatalf("%v, want %v", st, want)
		}
		return r
	}
	end := func(r *Registration, want abi.Status) {
		t.Helper()
		if done, _, _, st := r.Read(1); !done || st != want {
			t.Fatalf("done %t, %v, want %v", done, st, want)
		}
	}
	first, second := start(abi.StatusOK), start(abi.StatusOK)
	start(abi.StatusNoResources)
	if st := g.DeallocPD(g.pdn); st != abi.StatusBusy {
		t.Errorf("their domain: %v", st)
	}
	end(first, abi.StatusOK)
	start(abi.StatusNoResources)
	g.SetLimits(Limits{Objects: Counts{abi.ObjectMR: 1, abi.ObjectMW: 50}})
	end(second, abi.StatusNoResources)
	if n := g.Counts()[abi.ObjectMR]; n != 1 {
		t.Errorf("%d regions of 1", n)
	}
	g.good(g.DeregMR(first.mr.key))
	g.good(g.DeallocPD(g.pdn))
}

// scattered is a page list of two levels, of so many pages of which none follows the one before:
// each but the first takes 4 bytes.
func (g *guest) scattered(pages int) (root uint64) {
	g.t.Helper()
	a, b := g.pages(1), g.pages(1)
	var lists []uint64
	for left := pages; left > 0; left -= abi.PageListEntries {
		of := make([]uint64, min(left, abi.PageListEntries))
		for i := range of {
			of[i] = []uint64{b, a}[i%2]
		}
		lists = append(lists, g.list(of...))
	}
	return g.list(lists...)
}

// TestThePageListCountsOnceFromItsFirstPiece: the memory of a long page list counts from the first
// piece on and only once, also while others are read. A region that does not get enough in the end
// holds nothing.
func TestThePageListCountsOnceFromItsFirstPiece(t *testing.T) {
	const pages, bytes = 5000, 4 * 4999
	for _, c := range []struct {
		name string
		room int
		want abi.Status
	}{
		{"exactly enough", bytes, abi.StatusOK}, {"a byte short", bytes - 1, abi.StatusNoResources},
	} {
		g := newGuest(t, Limits{PageListBytes: c.room})
		x := &abi.RegMR{PDN: g.pdn, Length: pages * abi.PageSize, Pages: g.scattered(pages), Levels: 2}
		r, st := g.StartRegMR(x)
		g.good(st)
		var held []int
		for left := pages; ; left -= 1000 {
			if r.Left() != left {
				t.Fatalf("%s: %d pages left of %d", c.name, r.Left(), left)
			}
			done, key, _, st := r.Read(1000)
			held = append(held, g.PageListBytes())
			if !done {
				continue
			}
			if st != c.want {
				t.Errorf("%s: %v, want %v", c.name, st, c.want)
			}
			if st == abi.StatusOK {
				g.good(g.DeregMR(key))
			}
			break
		}
		want := []int{4 * 4096, 4 * 4096, 4 * 4096, 4 * 4096, bytes}
		if c.want != abi.StatusOK {
			want[4] = 0
		}
		if !slices.Equal(held, want) || g.PageListBytes() != 0 {
			t.Errorf("%s: %v bytes are held, want %v, and %d at the end", c.name, held, want, g.PageListBytes())
		}
		g.good(g.DeallocPD(g.pdn))
	}
	const few = 4 * 15
	g := newGuest(t, Limits{PageListBytes: 2*few - 1})
	x := &abi.RegMR{PDN: g.pdn, Length: 16 * abi.PageSize, Pages: g.scattered(16), Levels: 2}
	first, st := g.StartRegMR(x)
	g.good(st)
	second, st := g.StartRegMR(x)
	g.good(st)
	if done, _, _, _ := first.Read(8); done || g.PageListBytes() != few {
		t.Errorf("done %t, %d bytes", done, g.PageListBytes())
	}
	if done, _, _, st := second.Read(8); !done || st != abi.StatusNoResources || g.PageListBytes() != few {
		t.Errorf("another: done %t, %v, %d bytes", done, st, g.PageListBytes())
	}
	if done, _, _, st := first.Read(8); !done || st != abi.StatusOK || g.PageListBytes() != few {
		t.Errorf("done %t, %v, %d bytes", done, st, g.PageListBytes())
	}
}

// TestARefusedReregistrationChangesNothing: an invalid change is refused, and the region stays as
// it was.
func TestARefusedReregistrationChangesNothing(t *testing.T) {
	g := newGuest(t, Limits{})
	var b Bindings
	m, busy, list := g.region(g.pdn, 64, allRights), g.region(g.pdn, 64, allRights), g.run(g.pages(1), 1)
	w := g.bound(abi.MWType2, &b, busy)
	for _, c := range []struct {
		name string
		r    abi.ReregMR
		want abi.Status
	}{
		{"nothing", abi.ReregMR{LKey: m.key}, abi.StatusInvalidArgument},
		{"something that there is not", abi.ReregMR{LKey: m.key, Mask: 1<<31 | abi.ReregAccess}, abi.StatusInvalidArgument},
		{"a window", abi.ReregMR{LKey: w.key, Mask: abi.ReregAccess}, abi.StatusNotFound},
		{"no region", abi.ReregMR{LKey: 0x123456, Mask: abi.ReregAccess}, abi.StatusNotFound},
		{"a region with a window", abi.ReregMR{LKey: busy.key, Mask: abi.ReregAccess}, abi.StatusBusy},
		{"one of AllocMR", abi.ReregMR{LKey: g.allocated(1).key, Mask: abi.ReregAccess}, abi.StatusInvalidArgument},
		{"rights", abi.ReregMR{LKey: m.key, Mask: abi.ReregAccess, Access: 1 << 30}, abi.StatusInvalidArgument},
		{"rights that are not changed", abi.ReregMR{LKey: m.key, Mask: abi.ReregPD, PDN: g.pdn, Access: 1 << 30}, abi.StatusOK},
		{"too long", abi.ReregMR{LKey: m.key, Mask: abi.ReregTranslation, Length: abi.MaxMRSize + 1, Pages: list, Levels: 1}, abi.StatusTooLarge},
		{"longer than its list", abi.ReregMR{LKey: m.key, Mask: abi.ReregTranslation, Length: abi.MaxMRSize, Pages: list, Levels: 1}, abi.StatusInvalidArgument},
		{"addresses that are not changed", abi.ReregMR{LKey: m.key, Mask: abi.ReregAccess, Access: allRights, Length: abi.MaxMRSize + 1}, abi.StatusOK},
	} {
		r, st := g.StartReregMR(&c.r)
		if st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
		if st != abi.StatusOK {
			continue
		}
		if _, st := g.StartReregMR(&c.r); st != abi.StatusBusy {
			t.Errorf("%s, twice at once: %v", c.name, st)
		}
		if done, key, _, st := r.Read(1); !done || st != abi.StatusOK || key != m.key || g.named(key) == m {
			t.Errorf("%s: done %t, %v, key %#x", c.name, done, st, key)
		}
		m = g.named(m.key)
		if m.access != allRights || m.length != 64 || m.pd.number != g.pdn || !m.usable() {
			t.Errorf("%s: it is %+v", c.name, m)
		}
	}
}

// TestAWindowBoundMeanwhileStopsReregistration: if a window is bound while the new page list is
// read, the region stays as it was. After a change the region counts for its new domain and page
// list. (DEV-933)
func TestAWindowBoundMeanwhileStopsReregistration(t *testing.T) {
	g := newGuest(t, Limits{})
	var b Bindings
	list := g.scattered(16)
	key, _, st := g.RegMR(&abi.RegMR{PDN: g.pdn, Length: 16 * abi.PageSize, Pages: list, Levels: 2, Access: allRights})
	g.good(st)
	to := g.newPD()
	change := &abi.ReregMR{LKey: key, Mask: abi.ReregTranslation | abi.ReregPD, PDN: to, Length: 20 * abi.PageSize, Pages: g.scattered(20), Levels: 2}
	r, st := g.StartReregMR(change)
	g.good(st)
	if done, _, _, _ := r.Read(8); done || g.PageListBytes() != 4*(15+19) {
		t.Fatalf("done %t, %d bytes", done, g.PageListBytes())
	}
	m := g.named(key)
	w := g.bound(abi.MWType2, &b, m)
	if done, _, _, st := r.Read(100); !done || st != abi.StatusBusy || g.PageListBytes() != 4*15 || g.named(key) != m || !m.usable() {
		t.Fatalf("done %t, %v, %d bytes", done, st, g.PageListBytes())
	}
	g.good(g.DeallocPD(to)) // nothing is in it
	g.good(g.DeallocMW(w.key))
	change.PDN = g.newPD()
	r, st = g.StartReregMR(change)
	g.good(st)
	done, now, _, st := r.Read(100)
	if !done || st != abi.StatusOK || g.PageListBytes() != 4*19 || now == key || g.named(key) != nil || m.usable() {
		t.Fatalf("done %t, %v, %d bytes, key %#x after %#x", done, st, g.PageListBytes(), now, key)
	}
	g.good(g.DeallocPD(g.pdn)) // it is in another
	if st := g.DeallocPD(change.PDN); st != abi.StatusBusy {
		t.Errorf("the new domain: %v", st)
	}
	g.good(g.DeregMR(now))
	g.good(g.DeallocPD(change.PDN))
}

// TestOldKeysStayInvalidForLong: a key that named a region before it was registered anew names no
// later one for a long time, though their places are used again.
func TestOldKeysStayInvalidForLong(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMR: 1, abi.ObjectMW: 1}})
	list := g.run(g.pages(1), 1)
	seen := map[uint32]bool{}
	for range 100 {
		key, _, st := g.RegMR(&abi.RegMR{PDN: g.pdn, Length: 8, Pages: list, Levels: 1})
		g.good(st)
		r, st := g.StartReregMR(&abi.ReregMR{LKey: key, Mask: abi.ReregTranslation, Length: 16, Pages: list, Levels: 1})
		g.good(st)
		_, now, _, st := r.Read(1)
		g.good(st)
		if seen[key] || seen[now] || key == now {
			t.Fatalf("key %#x or %#x is used again, after %d", key, now, len(seen))
		}
		seen[key], seen[now] = true, true
		g.good(g.DeregMR(now))
	}
}

// allocated makes a region for fast registration.
func (g *guest) allocated(pages uint32) *MR {
	g.t.Helper()
	keys, st := g.AllocMR(&abi.AllocMR{PDN: g.pdn, MaxPages: pages})
	g.good(st)
	if keys.LKey != keys.RKey {
		g.t.Errorf("keys %#x and %#x", keys.LKey, keys.RKey)
	}
	return g.named(keys.RKey)
}

// supplied is such a region that has its memory.
func (g *guest) supplied(pages int, access uint32) *MR {
	g.t.Helper()
	m := g.allocated(uint32(pages))
	c := g.fastReg(pages)
	c.Access = access
	if st := g.fastRegister(m.pd, m.key, c); st != abi.WCSuccess {
		g.t.Fatalf("supplied: %v", st)
	}
	return g.named(m.key)
}

// fastReg is a good request for so many pages.
func (g *guest) fastReg(pages int) *abi.FastReg {
	return &abi.FastReg{IOVA: 0x5000, Length: uint64(pages) * abi.PageSize, Pages: g.run(g.pages(pages), pages), Access: allRights}
}

// TestFastRegionsHaveBoundsAndAQuota: a region for fast registration has one page at least and
// MaxFastPages at most. It counts as a region, however many windows there may be, and so does one
// whose page list is being read.
func TestFastRegionsHaveBoundsAndAQuota(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMR: 3, abi.ObjectMW: 100}})
	alloc := func(what string, c abi.AllocMR, want abi.Status) {
		t.Helper()
		if _, st := g.AllocMR(&c); st != want {
			t.Errorf("%s: %v, want %v", what, st, want)
		}
	}
	alloc("no pages", abi.AllocMR{PDN: g.pdn}, abi.StatusInvalidArgument)
	alloc("a page too many", abi.AllocMR{PDN: g.pdn, MaxPages: abi.MaxFastPages + 1}, abi.StatusTooLarge)
	alloc("no domain", abi.AllocMR{PDN: 0x777, MaxPages: 1}, abi.StatusNotFound)
	alloc("one page", abi.AllocMR{PDN: g.pdn, MaxPages: 1}, abi.StatusOK)
	alloc("all pages", abi.AllocMR{PDN: g.pdn, MaxPages: abi.MaxFastPages}, abi.StatusOK)
	at := g.pages(1)
	reading, st := g.StartRegMR(&abi.RegMR{PDN: g.pdn, Length: 8, Pages: g.run(at, 1), Levels: 1})
	g.good(st)
	alloc("three are there", abi.AllocMR{PDN: g.pdn, MaxPages: 1}, abi.StatusNoResources)
	_, key, _, st := reading.Read(1)
	g.good(st)
	alloc("three are there still", abi.AllocMR{PDN: g.pdn, MaxPages: 1}, abi.StatusNoResources)
	g.good(g.DeregMR(key))
	alloc("two are there", abi.AllocMR{PDN: g.pdn, MaxPages: 1}, abi.StatusOK)
	g.Close(0)
	alloc("after the end", abi.AllocMR{PDN: g.pdn, MaxPages: 1}, abi.StatusBadState)
}

// TestAFreeRegionTakesOneValidRegistration: a free region accepts a valid request once, and is
// unchanged by an invalid one. (DEV-935)
func TestAFreeRegionTakesOneValidRegistration(t *testing.T) {
	for name, c := range map[string]struct {
		change func(g *guest, m *MR, pd **PD, c *abi.FastReg)
		want   abi.WCStatus
	}{
		"all its pages":     {nil, abi.WCSuccess},
		"fewer pages":       {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.Length = 1 }, abi.WCSuccess},
		"one byte too many": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.Length++ }, abi.WCMWBindErr},
		"no bytes":          {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.Length = 0 }, abi.WCMWBindErr},
		"to the end of the address space": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) {
			c.IOVA = -c.Length
		}, abi.WCSuccess},
		"past the end": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.IOVA = -c.Length + 1 }, abi.WCMWBindErr},
		"local write missing": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) {
			c.Access = abi.AccessRemoteWrite
		}, abi.WCMWBindErr},
		"zero based at 0": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) {
			c.IOVA, c.Access = 0, c.Access|abi.AccessZeroBased
		}, abi.WCSuccess},
		"zero based elsewhere": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) {
			c.Access |= abi.AccessZeroBased
		}, abi.WCMWBindErr},
		"at 0":                 {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.IOVA = 0 }, abi.WCSuccess},
		"of another domain":    {func(g *guest, _ *MR, pd **PD, _ *abi.FastReg) { *pd = g.PD(g.newPD()) }, abi.WCMWBindErr},
		"it has its memory":    {func(_ *guest, m *MR, _ **PD, _ *abi.FastReg) { m.valid = true }, abi.WCMWBindErr},
		"no fast registration": {func(_ *guest, m *MR, _ **PD, _ *abi.FastReg) { m.fast = 0 }, abi.WCMWBindErr},
		"it is gone": {func(g *guest, m *MR, _ **PD, _ *abi.FastReg) {
			g.good(g.DeregMR(m.key))
		}, abi.WCMWBindErr},
		"no such list": {func(_ *guest, _ *MR, _ **PD, c *abi.FastReg) { c.Pages = 1 << 50 }, abi.WCMWBindErr},
	} {
		g := newGuest(t, Limits{})
		m, r := g.allocated(2), g.fastReg(2)
		pd := m.pd
		if c.change != nil {
			c.change(g, m, &pd, r)
		}
		key := m.key&^0xff | 0x5a // of which the program chooses the low byte
		st := g.fastRegister(pd, key, r)
		now := g.named(key)
		if st != c.want || (now != nil && now != m) != (c.want == abi.WCSuccess) {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
		if st == abi.WCSuccess && (!now.usable() || now.access != r.Access || now.iova != r.IOVA || now.length != r.Length || now.fast != 2) {
			t.Errorf("%s: it is %+v", name, now)
		}
	}
}
