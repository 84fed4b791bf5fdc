package verbs

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestARegionCoversItsOwnBytesOnly: a region covers its own bytes and no others, also where it ends
// with the address space.
func TestARegionCoversItsOwnBytesOnly(t *testing.T) {
	const begin, length = 0x1000, 0x100
	m := &MR{iova: begin, length: length}
	last := &MR{iova: 1<<64 - length, length: length}
	for _, c := range []struct {
		m       *MR
		addr, n uint64
		want    bool
	}{
		{m, begin, length, true},
		{m, begin, length + 1, false},
		{m, begin, ^uint64(0), false},
		{m, begin + 1, length - 1, true},
		{m, begin + 1, length, false},
		{m, begin - 1, 1, false},
		{m, begin - 1, length, false},
		{m, begin + length - 1, 1, true},
		{m, begin + length - 1, 2, false},
		{m, begin + length, 0, true},
		{m, begin + length, 1, false},
		{m, begin + length + 1, 0, false},
		{m, begin + 2*length, 1, false},
		{m, 0, begin + 1, false},
		{m, 1<<64 - 1, 1, false},
		{last, 1<<64 - length, length, true},
		{last, 1<<64 - length - 1, 1, false},
		{last, 1<<64 - 1, 1, true},
		{last, 0, 1, false},
	} {
		if got := c.m.covers(c.addr, c.n); got != c.want {
			t.Errorf("region at %#x: %#x bytes at %#x: %t", c.m.iova, c.n, c.addr, got)
		}
	}
}

// TestAWordIsAlignedInBothViews: a word is aligned where it is in the guest's view and in memory: a
// region, or a window in it, may begin anywhere in a page.
func TestAWordIsAlignedInBothViews(t *testing.T) {
	for _, c := range []struct {
		m    MR
		addr uint64
		want bool
	}{
		{MR{iova: 0x1000}, 0x1008, true},
		{MR{iova: 0x1000}, 0x1004, false},
		{MR{iova: 0x1000, skew: 4}, 0x1008, false}, // in memory it is not
		{MR{iova: 0x1004}, 0x1004, false},          // in memory alone
		{MR{iova: 0x1002, skew: 2}, 0x1008, true},
		{MR{iova: 0x1002, skew: 6}, 0x1008, false},
		{MR{skew: 2, shift: 6}, 16, true}, // a window by offsets
		{MR{skew: 2, shift: 2}, 16, false},
		{MR{shift: 4}, 8, false},
	} {
		if got := c.m.aligned(c.addr); got != c.want {
			t.Errorf("region at %#x, skew %d, shift %d: %#x is aligned: %t", c.m.iova, c.m.skew, c.m.shift, c.addr, got)
		}
	}
}

// TestWritesLandWhateverTheirLengthAndPlace: what is written lands where it should, whatever its
// length and place: a word that is aligned goes by one store, which takes neither other lengths nor
// other places.
func TestWritesLandWhateverTheirLengthAndPlace(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, abi.PageSize, allRights)
	for _, n := range []int{1, 7, 8, 9, 16} {
		for off := range 9 {
			mem, data := g.mem(m.iova, 64), bytes.Repeat([]byte{0xaa}, n)
			clear(mem)
			want := bytes.Clone(mem)
			copy(want[off:], data)
			if err := m.Write(m.iova+uint64(off), data); err != nil || !bytes.Equal(mem, want) {
				t.Errorf("%d bytes at %d: %v, % x", n, off, err, mem)
			}
		}
	}
}

// TestARegionGivesOnlyItsRights: a region gives what was asked for when all of it is given, to its
// own protection domain, and while there is memory behind it.
func TestARegionGivesOnlyItsRights(t *testing.T) {
	pd := &PD{}
	for _, c := range []struct {
		name   string
		change func(m *MR)
		need   uint32
		want   bool
	}{
		{"one right of several", func(*MR) {}, abi.AccessLocalWrite, true},
		{"all rights", func(*MR) {}, abi.AccessLocalWrite | abi.AccessRemoteRead, true},
		{"no right", func(*MR) {}, 0, true},
		{"another right", func(*MR) {}, abi.AccessRemoteWrite, false},
		{"one right too many", func(*MR) {}, abi.AccessLocalWrite | abi.AccessRemoteWrite, false},
		{"invalid", func(m *MR) { m.valid = false }, 0, false},
		{"another domain", func(m *MR) { m.pd = &PD{} }, 0, false},
		{"shorter", func(m *MR) { m.length-- }, 0, false},
		{"a window", func(m *MR) { m.window, m.parent = true, &MR{valid: true} }, 0, true},
		{"a window whose region is invalid", func(m *MR) { m.window, m.parent = true, &MR{} }, 0, false},
		{"a window that is not bound", func(m *MR) { m.window, m.valid = true, false }, 0, false},
	} {
		m := &MR{pd: pd, valid: true, access: abi.AccessLocalWrite | abi.AccessRemoteRead, iova: 0x1000, length: 16}
		c.change(m)
		if got := m.allows(pd, 0x1000, 16, c.need); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// TestKeysWorkForTheirUsersOnly looks up keys for each kind of user: the function's own side, a
// peer, and a peer that makes one invalid.
func TestKeysWorkForTheirUsersOnly(t *testing.T) {
	g := newGuest(t, Limits{})
	r, pd, other := &g.Regions, g.PD(g.pdn), g.PD(g.newPD())
	var own, foreign Bindings
	all, bindable := g.region(g.pdn, 64, allRights), g.region(g.pdn, 64, abi.AccessMWBind)
	local, elsewhere := g.region(g.pdn, 64, abi.AccessLocalWrite), g.region(other.number, 64, allRights)
	readable := g.region(g.pdn, 64, abi.AccessRemoteRead)
	invalid := g.region(g.pdn, 64, allRights)
	invalid.valid = false
	mine, theirs := g.bound(abi.MWType2, &own, bindable), g.bound(abi.MWType2, &foreign, bindable)
	everybodys := g.bound(abi.MWType1, &own, bindable)
	free := g.named(g.window(g.pdn, abi.MWType2))
	for _, c := range []struct {
		name                             string
		m                                *MR
		local, remote, invalidate, names bool
	}{
		{"region", all, true, true, true, true},
		{"region without rights for peers", local, true, false, false, true},
		{"region that may be bound alone", bindable, true, false, false, true},
		{"region to read", readable, true, true, true, true},
		{"region of another domain", elsewhere, false, false, false, false},
		{"region that is invalid", invalid, false, false, false, true},
		{"window", mine, false, true, true, true},
		{"window of another queue pair", theirs, false, false, false, true},
		{"window of type 1", everybodys, false, true, false, true},
		{"free window", free, false, false, false, true},
	} {
		addr, n := c.m.iova, max(c.m.length, 1)
		for what, is := range map[string][2]bool{
			"by its own side":            {r.local(pd, c.m.key, addr, n, 0) == c.m, c.local},
			"by a peer":                  {r.Remote(pd, &own, c.m.key, addr, n, abi.AccessRemoteRead) == c.m, c.remote},
			"by a peer, to make invalid": {r.invalidatable(pd, &own, c.m.key) == c.m, c.invalidate},
			"as one of the domain":       {r.inDomain(pd, c.m.key), c.names},
			"beyond its end":             {r.Remote(pd, &own, c.m.key, addr, n+1, abi.AccessRemoteRead) != nil, false},
			"without the right":          {r.Remote(pd, &own, c.m.key, addr, n, 1<<30) != nil, false},
		} {
			if is[0] != is[1] {
				t.Errorf("%s %s: %t", c.name, what, is[0])
			}
		}
	}
	const unknown = 0x123456
	if r.local(pd, unknown, 0, 0, 0) != nil || r.Remote(pd, &own, unknown, 0, 0, 0) != nil || r.invalidatable(pd, &own, unknown) != nil || r.inDomain(pd, unknown) {
		t.Error("a key that nobody has names something")
	}
}

// TestAPeerLearnsWhyItMayNotAccessMemory: what is wrong with a key is told apart: there is none, it
// is of others, it does not give the right, or its memory ends before.
func TestAPeerLearnsWhyItMayNotAccessMemory(t *testing.T) {
	g := newGuest(t, Limits{})
	r, pd, other := &g.Regions, g.PD(g.pdn), g.PD(g.newPD())
	var own, foreign Bindings
	readable, bindable := g.region(g.pdn, 64, abi.AccessRemoteRead), g.region(g.pdn, 64, abi.AccessMWBind)
	invalid := g.region(g.pdn, 64, allRights)
	invalid.valid = false
	for _, c := range []struct {
		name  string
		key   uint32
		n     uint64
		right uint32
		want  transport.Refusal
	}{
		{"a key that nobody has", 0x123456, 64, abi.AccessRemoteRead, transport.UnknownKey},
		{"an invalid region", invalid.key, 64, abi.AccessRemoteRead, transport.UnknownKey},
		{"a free window", g.named(g.window(g.pdn, abi.MWType2)).key, 64, abi.AccessRemoteRead, transport.UnknownKey},
		{"a region of another domain", g.region(other.number, 64, allRights).key, 64, abi.AccessRemoteRead, transport.ForeignKey},
		{"a window of another queue pair", g.bound(abi.MWType2, &foreign, bindable).key, 64, abi.AccessRemoteRead, transport.ForeignKey},
		{"another right", readable.key, 64, abi.AccessRemoteWrite, transport.Access},
		{"another right, past the end", readable.key, 65, abi.AccessRemoteWrite, transport.Access},
		{"past the end", readable.key, 65, abi.AccessRemoteRead, transport.OutOfBounds},
	} {
		if r.Remote(pd, &own, c.key, readable.iova, c.n, c.right) != nil {
			t.Errorf("%s is accessible", c.name)
		}
		if why := r.wrongRemote(pd, &own, c.key, c.right); why != c.want || !why.OfMemory() {
			t.Errorf("%s: %v, want %v", c.name, why, c.want)
		}
	}
}

// TestTheReservedKeyReaches62BitsInPrivilegedQueues: the reserved key names device addresses, of
// which there are 2^62, in privileged queues alone.
func TestTheReservedKeyReaches62BitsInPrivilegedQueues(t *testing.T) {
	g := newGuest(t, Limits{})
	const all = uint64(1) << 62
	for _, c := range []struct {
		privileged bool
		addr, n    uint64
		want       bool
	}{
		{true, 0, all, true},
		{true, all - 8, 8, true},
		{true, all - 8, 9, false},
		{true, all, 0, true},
		{true, all, 1, false},
		{true, ^uint64(0) - 3, 8, false}, // it wraps
		{true, ^uint64(0) - 3, 4, false},
		{false, 0, 8, false},
	} {
		if got := g.memory(g.PD(g.pdn), c.privileged, abi.ReservedLKey, c.addr, c.n, abi.AccessLocalWrite); (got != nil) != c.want {
			t.Errorf("privileged %t, %#x bytes at %#x: %t", c.privileged, c.n, c.addr, got != nil)
		}
	}
	m := g.region(g.pdn, 64, 0)
	if g.memory(g.PD(g.pdn), true, m.key, m.iova, 64, 0) != m {
		t.Error("a privileged queue does not know an ordinary key")
	}
}

// TestAPeerInvalidatesWhatItMayUse: the effect of a SEND with invalidate. A region remains usable
// for its own side, one for fast registration waits for the next request, and a window becomes
// free.
func TestAPeerInvalidatesWhatItMayUse(t *testing.T) {
	g := newGuest(t, Limits{})
	pd := g.PD(g.pdn)
	m := g.region(g.pdn, 64, allRights)
	m.invalidateRemote()
	if m.access != abi.AccessLocalWrite|abi.AccessMWBind || !m.usable() {
		t.Errorf("region: rights %#x, usable %t", m.access, m.usable())
	}
	fast := g.supplied(1, allRights)
	fast.invalidateRemote()
	if fast.usable() || fast.access != allRights {
		t.Errorf("region for fast registration: rights %#x, usable %t", fast.access, fast.usable())
	}
	var b Bindings
	bindable := g.region(g.pdn, 64, allRights)
	w := g.bound(abi.MWType2, &b, bindable)
	for range 2 { // the second time nothing is left to do
		w.invalidateRemote()
		if w.usable() || bindable.windows != 0 || !b.windows.Empty() || g.local(pd, bindable.key, bindable.iova, 64, allRights) != bindable {
			t.Errorf("window: usable %t, %d windows", w.usable(), bindable.windows)
		}
	}
}

// TestARegionInUseCannotBeDeregistered: a key that is no region, or a region in use, cannot be
// deregistered.
func TestARegionInUseCannotBeDeregistered(t *testing.T) {
	g := newGuest(t, Limits{})
	var b Bindings
	m := g.region(g.pdn, 64, allRights)
	w := g.bound(abi.MWType2, &b, m)
	want := func(what string, key uint32, want abi.Status) {
		t.Helper()
		if st := g.DeregMR(key); st != want {
			t.Errorf("%s: %v, want %v", what, st, want)
		}
	}
	want("a window", w.key, abi.StatusNotFound)
	want("nothing", 0x123456, abi.StatusNotFound)
	want("a region with a window", m.key, abi.StatusBusy)
	g.good(g.DeallocMW(w.key))
	change, st := g.StartReregMR(&abi.ReregMR{LKey: m.key, Mask: abi.ReregAccess})
	g.good(st)
	want("a region that is being changed", m.key, abi.StatusBusy)
	_, key, _, st := change.Read(1)
	g.good(st)
	want("a region", key, abi.StatusOK)
	if got := g.DeallocMW(g.region(g.pdn, 64, 0).key); got != abi.StatusNotFound {
		t.Errorf("a region deallocated as a window: %v", got)
	}
}
