package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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
	if st := g.supply(m.pd, m.key, c); st != abi.WCSuccess {
		g.t.Fatalf("supplied: %v", st)
	}
	return g.named(m.key)
}

// fastReg is a good request for so many pages.
func (g *guest) fastReg(pages int) *abi.FastReg {
	return &abi.FastReg{IOVA: 0x5000, Length: uint64(pages) * abi.PageSize, Pages: g.run(g.pages(pages), pages), Access: allRights}
}

// TestAllocMRLimits: a region for fast registration has one page at least and MaxFastPages at most.
// It counts as a region, however many windows there may be, and so does one whose page list is
// being read.
func TestAllocMRLimits(t *testing.T) {
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

// TestSupply: a free region accepts a valid request once, and is unchanged by an invalid one.
// (DEV-935)
func TestSupply(t *testing.T) {
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
		st := g.supply(pd, key, r)
		now := g.named(key)
		if st != c.want || (now != nil && now != m) != (c.want == abi.WCSuccess) {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
		if st == abi.WCSuccess && (!now.usable() || now.access != r.Access || now.iova != r.IOVA || now.length != r.Length || now.fast != 2) {
			t.Errorf("%s: it is %+v", name, now)
		}
	}
}
