package rdma

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestDeregistrationStopsWhatIsNotSent ends a registration while it is in use. Only what has not
// been sent or answered fails.
func TestDeregistrationStopsWhatIsNotSent(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 1<<20))
		p.step()
		ok(t, p.hosts[0].fn.DeregMR(p.ma.key))
		if got := p.a.send.wait(1)[0].Status; got != abi.WCLocProtErr {
			t.Fatalf("WRITE from a region that is gone: %v", got)
		}
	})
	t.Run("remote", func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 1<<20))
		p.step()
		ok(t, p.hosts[1].fn.DeregMR(p.mb.key))
		if got := p.a.send.wait(1)[0].Status; got != abi.WCRemAccessErr && got != abi.WCRemOpErr {
			t.Fatalf("READ of a region that is gone: %v", got)
		}
	})
}

// TestOldKeysNameNoLaterRegion registers again and again: no old key becomes valid for another
// region soon.
func TestOldKeysNameNoLaterRegion(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectMR: 2}}})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	addr := h.alloc(4096)
	list := h.pageList(addr, 4096, 1)
	seen := map[uint32]bool{}
	for range 400 {
		key, _, st := h.fn.RegMR(&abi.RegMR{PDN: pd, IOVA: addr, Length: 4096, Pages: list, Levels: 1})
		ok(t, st)
		if seen[key] {
			t.Fatalf("key %#x again after %d registrations", key, len(seen))
		}
		seen[key] = true
		ok(t, h.fn.DeregMR(key))
		if h.fn.DeregMR(key) != abi.StatusNotFound {
			t.Fatal("key still valid")
		}
	}
}

// TestReregistrationChangesARegionOrNothing changes everything of a region, one thing at a time.
// The key then has the new meaning; if it would name other memory, it becomes invalid. An error
// changes nothing. (DEV-933)
func TestReregistrationChangesARegionOrNothing(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	rereg := func(r abi.ReregMR) (uint32, abi.Status) {
		g, st := h.fn.StartReregMR(&r)
		if st != abi.StatusOK {
			return 0, st
		}
		for {
			if done, lkey, _, st := g.Read(1); done {
				return lkey, st
			}
		}
	}
	use := func(name string, key uint32, addr uint64, want abi.WCStatus) {
		t.Helper()
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{})
		p.connect(a, b, true)
		a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, 8))
		if st := a.send.wait(1)[0].Status; st != want {
			t.Fatalf("%s: %v, want %v", name, st, want)
		}
		ok(t, h.fn.DestroyQP(p.now, b.number))
	}
	m := h.register(p.pd[1], 8192, abi.AccessLocalWrite)
	use("no right yet", m.key, m.addr, abi.WCRemAccessErr)
	k2, st := rereg(abi.ReregMR{LKey: m.key, Mask: abi.ReregAccess, Access: allAccess})
	ok(t, st)
	if k2 != m.key {
		t.Errorf("another key, %#x after %#x, for the same memory", k2, m.key)
	}
	use("access given", k2, m.addr, abi.WCSuccess)
	other := h.alloc(4 << 20)
	k3, st := rereg(abi.ReregMR{LKey: k2, Mask: abi.ReregTranslation, IOVA: 0, Length: 4 << 20, Pages: h.pageList(other, 4<<20, 2), Levels: 2})
	ok(t, st)
	fill(p.ma.bytes(), 8)
	use("translation", k3, 3<<20, abi.WCSuccess)
	use("old key", k2, m.addr, abi.WCRemAccessErr)
	if !bytes.Equal(h.bytes(other+3<<20, 8), p.ma.bytes()[:8]) {
		t.Fatal("written elsewhere")
	}
	for _, c := range []struct {
		name string
		r    abi.ReregMR
		want abi.Status
	}{
		{"nothing", abi.ReregMR{LKey: k3}, abi.StatusInvalidArgument},
		{"unknown bit", abi.ReregMR{LKey: k3, Mask: 8}, abi.StatusInvalidArgument},
		{"old key", abi.ReregMR{LKey: k2, Mask: abi.ReregAccess}, abi.StatusNotFound},
		{"no PD", abi.ReregMR{LKey: k3, Mask: abi.ReregPD, PDN: 77}, abi.StatusNotFound},
		{"remote without local write", abi.ReregMR{LKey: k3, Mask: abi.ReregAccess, Access: abi.AccessRemoteWrite}, abi.StatusInvalidArgument},
		{"unmapped", abi.ReregMR{LKey: k3, Mask: abi.ReregTranslation, Length: 4096, Levels: 1}, abi.StatusMemoryFault},
		{"no length", abi.ReregMR{LKey: k3, Mask: abi.ReregTranslation, Levels: 1}, abi.StatusInvalidArgument},
		{"zero based at an address", abi.ReregMR{LKey: k3, Mask: abi.ReregAccess | abi.ReregTranslation, Access: abi.AccessZeroBased, IOVA: 4096, Length: 4096, Levels: 1}, abi.StatusInvalidArgument},
	} {
		if _, st := rereg(c.r); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
	use("unchanged by errors", k3, 3<<20, abi.WCSuccess)
	pd, _ := h.fn.AllocPD()
	k4, st := rereg(abi.ReregMR{LKey: k3, Mask: abi.ReregPD, PDN: pd})
	ok(t, st)
	use("other domain", k4, 0, abi.WCRemAccessErr)
	if st := h.fn.DeallocPD(pd); st != abi.StatusBusy {
		t.Errorf("PD with a region: %v", st)
	}
	ok(t, h.fn.DeregMR(k4))
	ok(t, h.fn.DeallocPD(pd))
	// One that a request made invalid is good again.
	p.b.postInvalidate(p.mb.key)
	success(t, p.b.send.wait(1))
	use("invalid", p.mb.key, p.mb.addr, abi.WCRemAccessErr)
	k5, st := rereg(abi.ReregMR{LKey: p.mb.key, Mask: abi.ReregAccess, Access: allAccess})
	ok(t, st)
	use("valid again", k5, p.mb.addr, abi.WCSuccess)
	use("key that was made invalid", p.mb.key, p.mb.addr, abi.WCRemAccessErr)
}

// TestPageListsAreBounded: page lists of scattered regions take host memory only up to a bound, and
// give it back.
func TestPageListsAreBounded(t *testing.T) {
	const pages = 8
	w := newWorld(t, worldConfig{limits: verbs.Limits{PageListBytes: 3 * 4 * pages}})
	h := w.hosts[0]
	pdn, st := h.fn.AllocPD()
	ok(t, st)
	list := h.pageList(h.alloc(pages*abi.PageSize), pages*abi.PageSize, 1)
	entries := h.bytes(list, 8*pages)
	register := func() (uint32, abi.Status) {
		key, _, st := h.fn.RegMR(&abi.RegMR{PDN: pdn, Length: pages * abi.PageSize, Pages: list, Levels: 1})
		return key, st
	}
	for range 10 { // contiguous: a list of no size
		_, st := register()
		ok(t, st)
	}
	first, last := binary.LittleEndian.Uint64(entries), binary.LittleEndian.Uint64(entries[8*(pages-1):])
	binary.LittleEndian.PutUint64(entries, last)
	binary.LittleEndian.PutUint64(entries[8*(pages-1):], first)
	var keys []uint32
	for range 20 {
		key, st := register()
		if st == abi.StatusNoResources {
			break
		}
		ok(t, st)
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > 3 {
		t.Fatalf("%d scattered regions registered, room for 3", len(keys))
	}
	ok(t, h.fn.DeregMR(keys[0]))
	_, st = register()
	ok(t, st)
	if _, st = register(); st != abi.StatusNoResources {
		t.Fatalf("over the bound again: %v", st)
	}
	h.fn.Close(w.now)
	if h.fn.PageListBytes() != 0 {
		t.Fatalf("%d bytes still counted after Close", h.fn.PageListBytes())
	}
}

// postRegMR posts a request to give a region its memory, under a new key.
func (p *qp) postRegMR(key uint32, r abi.FastReg) {
	data := make([]byte, abi.FastRegSize)
	r.Marshal(data)
	p.postRaw(abi.SendWQE{Opcode: abi.OpRegMR, Flags: abi.SendSignaled, RKey: key}, data)
	p.ring()
}

// TestFastRegistrationGivesAndTakesMemory gives a region memory again and again, lets the peer use
// it, and takes it back: by a request of its own, and by the peer's SEND. (DEV-935)
func TestFastRegistrationGivesAndTakesMemory(t *testing.T) {
	p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: true})
	h := p.hosts[1]
	fill(p.ma.bytes(), 7)
	keys, st := h.fn.AllocMR(&abi.AllocMR{PDN: p.pd[1], MaxPages: 3})
	ok(t, st)
	key := keys.RKey
	use := func(key uint32, addr uint64, n int) abi.WCStatus {
		t.Helper()
		p.a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, n))
		return p.a.send.wait(1)[0].Status
	}
	at := h.alloc(4 * abi.PageSize)
	list := h.pageList(at, 4*abi.PageSize, 1)
	for i := range 20 {
		key = incKey(key)
		n := 1 + i*617%(3*abi.PageSize-100)
		p.b.postRegMR(key, abi.FastReg{IOVA: 0x5000, Length: uint64(n), Pages: list, Access: allAccess, Offset: 100})
		c := p.b.send.wait(1)
		success(t, c)
		if c[0].Opcode != abi.WCOpRegMR {
			t.Fatalf("%+v", c[0])
		}
		clear(h.bytes(at, 4*abi.PageSize))
		if st := use(key, 0x5000, n); st != abi.WCSuccess {
			t.Fatal(i, st)
		}
		if got := h.bytes(at, 4*abi.PageSize); !bytes.Equal(got[100:100+n], p.ma.bytes()[:n]) || got[99] != 0 || got[100+n] != 0 {
			t.Fatal("wrong bytes written")
		}
		if i%2 == 0 {
			p.b.postInvalidate(key)
			success(t, p.b.send.wait(1))
			continue
		}
		p.b.receive(1, p.mb.sge(0, 100)) // its peer ends it
		p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: key}, p.ma.sge(0, 8))
		success(t, p.a.send.wait(1))
		success(t, p.b.recv.wait(1))
	}
	if _, st := h.fn.StartReregMR(&abi.ReregMR{LKey: key, Mask: abi.ReregAccess}); st != abi.StatusInvalidArgument {
		t.Errorf("registered again by a command: %v", st)
	}
	if st := use(key, 0x5000, 1); st != abi.WCRemAccessErr {
		t.Errorf("a key that was made invalid: %v", st)
	}
	ok(t, h.fn.DeregMR(key))
	if n := h.fn.PageListBytes(); n < 0 {
		t.Errorf("%d bytes of page lists", n)
	}
}

// TestParametersNeedNoAnnouncement: a `RegMR` or `BindMW` request is carried out wherever the
// stride holds its parameters, whatever SGEs and inline bytes the queue was made for; where it does
// not, the request fails and the clause is named. (DRV-608, DEV-608)
func TestParametersNeedNoAnnouncement(t *testing.T) {
	for _, c := range []struct {
		sge    uint8
		stride uint8 // log2
		want   abi.WCStatus
	}{{1, 7, abi.WCSuccess}, {0, 7, abi.WCSuccess}, {0, 6, abi.WCLocQPOpErr}} {
		for _, op := range []abi.Opcode{abi.OpRegMR, abi.OpBindMW} {
			p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
			h := p.hosts[1]
			a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{privileged: true, bare: true, sge: c.sge, stride: c.stride})
			p.connect(a, b, true)
			x, data := abi.SendWQE{Opcode: op, Flags: abi.SendSignaled}, []byte(nil)
			if op == abi.OpRegMR {
				keys, st := h.fn.AllocMR(&abi.AllocMR{PDN: p.pd[1], MaxPages: 1})
				ok(t, st)
				at := h.alloc(abi.PageSize)
				r := abi.FastReg{IOVA: 0x5000, Length: 100, Pages: h.pageList(at, abi.PageSize, 1), Access: allAccess}
				x.RKey, data = keys.RKey, make([]byte, abi.FastRegSize)
				r.Marshal(data)
			} else {
				rkey, st := h.fn.AllocMW(&abi.AllocMW{PDN: p.pd[1], Type: abi.MWType2})
				ok(t, st)
				m := h.register(p.pd[1], 4096, allAccess|abi.AccessMWBind)
				w := abi.BindMW{Addr: m.addr, Length: 100, LKey: m.key, Access: abi.AccessRemoteRead}
				x.RKey, data = rkey, make([]byte, abi.BindMWSize)
				w.Marshal(data)
			}
			data = data[:min(len(data), 1<<c.stride-abi.SendWQEHeader)]
			b.postRaw(x, data)
			b.ring()
			e := b.send.wait(1)[0]
			named := slices.ContainsFunc(h.violations, func(v abi.Violation) bool { return v.Clause == uint16(abi.DRV608) && v.Ring == abi.RingSQ })
			if e.Status != c.want || named != (c.want != abi.WCSuccess) {
				t.Errorf("%s, %d SGEs, stride %d: %s; the clause was named: %t", op, c.sge, 1<<c.stride, e.Status, named)
			}
		}
	}
}

// TestBadFastRegistrationsFailTheirRequest: what cannot be supplied ends in an error of the
// request, and so does a request of a queue that is not privileged. (DEV-934, DEV-935)
func TestBadFastRegistrationsFailTheirRequest(t *testing.T) {
	good := abi.FastReg{IOVA: 0x5000, Length: 8192, Access: allAccess}
	for name, c := range map[string]struct {
		change func(p *pair, key *uint32, r *abi.FastReg)
		plain  bool
		want   abi.WCStatus
	}{
		"not privileged":  {func(*pair, *uint32, *abi.FastReg) {}, true, abi.WCLocQPOpErr},
		"no such region":  {func(_ *pair, key *uint32, _ *abi.FastReg) { *key ^= 1 << 20 }, false, abi.WCMWBindErr},
		"of RegMR":        {func(p *pair, key *uint32, _ *abi.FastReg) { *key = p.mb.key }, false, abi.WCMWBindErr},
		"no bytes":        {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Length = 0 }, false, abi.WCMWBindErr},
		"too many pages":  {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Offset = 1 }, false, abi.WCMWBindErr},
		"offset":          {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Offset, r.Length = 4096, 1 }, false, abi.WCMWBindErr},
		"wraps":           {func(_ *pair, _ *uint32, r *abi.FastReg) { r.IOVA = ^uint64(0) - 100 }, false, abi.WCMWBindErr},
		"rights":          {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Access = abi.AccessRemoteWrite }, false, abi.WCMWBindErr},
		"unknown rights":  {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Access |= 1 << 30 }, false, abi.WCMWBindErr},
		"list elsewhere":  {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Pages = 1 << 50 }, false, abi.WCMWBindErr},
		"zero based":      {func(_ *pair, _ *uint32, r *abi.FastReg) { r.Access |= abi.AccessZeroBased }, false, abi.WCMWBindErr},
		"as it should be": {func(*pair, *uint32, *abi.FastReg) {}, false, abi.WCSuccess},
	} {
		p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: !c.plain})
		h, r := p.hosts[1], good
		keys, st := h.fn.AllocMR(&abi.AllocMR{PDN: p.pd[1], MaxPages: 2})
		ok(t, st)
		key := incKey(keys.RKey)
		r.Pages = h.pageList(h.alloc(8192), 8192, 1)
		c.change(p, &key, &r)
		p.b.postRegMR(key, r)
		if got := p.b.send.wait(1)[0].Status; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: true})
	h := p.hosts[1]
	for want, c := range map[abi.Status]abi.AllocMR{
		abi.StatusNotFound:        {PDN: 0x777, MaxPages: 1},
		abi.StatusInvalidArgument: {PDN: p.pd[1]},
		abi.StatusTooLarge:        {PDN: p.pd[1], MaxPages: abi.MaxFastPages + 1},
	} {
		if _, st := h.fn.AllocMR(&c); st != want {
			t.Errorf("%+v: %v", c, st)
		}
	}
}

// TestPageListsOfFastRegistrationsAreBounded: the page lists of regions take no more host memory
// than the function may use; a region that is supplied again needs only what it takes beyond its
// last list.
func TestPageListsOfFastRegistrationsAreBounded(t *testing.T) {
	p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: true})
	h := p.hosts[1]
	// supply posts a request to give a region so many pages that do not lie side by side, by a queue
	// pair of its own, and returns the region's new key.
	supply := func(key uint32, pages int) (uint32, abi.WCStatus) {
		q, peer := h.createQP(p.pd[1], qpConfig{privileged: true}), p.hosts[0].createQP(p.pd[0], qpConfig{})
		p.connect(peer, q, true)
		list := h.alloc(abi.PageSize)
		for i := range pages {
			binary.LittleEndian.PutUint64(h.bytes(list+uint64(8*i), 8), arenaBase+uint64(2*(pages-i))*abi.PageSize)
		}
		key = incKey(key)
		q.postRegMR(key, abi.FastReg{Length: uint64(pages * abi.PageSize), Pages: list, Access: allAccess})
		return key, q.send.wait(1)[0].Status
	}
	free := func() uint32 {
		keys, st := h.fn.AllocMR(&abi.AllocMR{PDN: p.pd[1], MaxPages: 16})
		ok(t, st)
		return keys.RKey
	}
	took := func(pages int) (key uint32, n int) {
		n = h.fn.PageListBytes()
		key, st := supply(free(), pages)
		if n = h.fn.PageListBytes() - n; st != abi.WCSuccess || n == 0 {
			t.Fatalf("%v, and the list takes %d bytes", st, n)
		}
		return key, n
	}
	_, two := took(2)
	before := h.fn.PageListBytes()
	first, four := took(4)
	valid := true
	h.fn.SetLimits(verbs.Limits{PageListBytes: before + 2*four})
	for _, c := range []struct {
		name  string
		again bool
		pages int
		want  abi.WCStatus
		bytes int // of all lists, then
	}{
		{"all that is left, and more", false, 5, abi.WCMWBindErr, four},
		{"all that is left", false, 4, abi.WCSuccess, 2 * four},
		{"nothing is left", false, 2, abi.WCMWBindErr, 2 * four},
		{"the same again", true, 4, abi.WCSuccess, 2 * four},
		{"more than before", true, 5, abi.WCMWBindErr, 2 * four},
		{"less than before", true, 2, abi.WCSuccess, four + two},
	} {
		key := first
		switch {
		case !c.again:
			key = free()
		case valid:
			p.b.postInvalidate(first)
			success(t, p.b.send.wait(1))
		}
		got, st := supply(key, c.pages)
		if n := h.fn.PageListBytes() - before; st != c.want || n != c.bytes {
			t.Errorf("%s: %v with %d bytes of lists, want %v with %d", c.name, st, n, c.want, c.bytes)
		}
		if c.again {
			if valid = st == abi.WCSuccess; valid {
				first = got
			}
		}
	}
}

// TestOnlyPrivilegedQueuesUseTheReservedKey: a privileged queue names memory by its device address,
// as far as the function reaches; another cannot, and a peer never. (DEV-934)
func TestOnlyPrivilegedQueuesUseTheReservedKey(t *testing.T) {
	for _, privileged := range []bool{true, false} {
		p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: privileged})
		fill(p.ma.bytes(), 7)
		sge := func(r *region, n int) abi.SGE {
			return abi.SGE{Addr: r.addr, Length: uint32(n), LKey: abi.ReservedLKey}
		}
		p.b.receive(1, sge(p.mb, 9000))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, sge(p.ma, 9000))
		got := p.a.send.wait(1)[0].Status
		if !privileged {
			if got != abi.WCLocProtErr {
				t.Errorf("%v", got)
			}
			continue
		}
		success(t, p.b.recv.wait(1))
		if got != abi.WCSuccess || !bytes.Equal(p.mb.bytes()[:9000], p.ma.bytes()[:9000]) {
			t.Errorf("%v, or wrong bytes", got)
		}
		p.a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.mb.addr, RKey: abi.ReservedLKey}, p.ma.sge(0, 8))
		if st := p.a.send.wait(1)[0].Status; st != abi.WCRemAccessErr {
			t.Errorf("a peer by the reserved key: %v", st)
		}
	}
	for name, addr := range map[string]uint64{"nothing there": 1 << 50, "beyond all": 1 << 63, "the last bytes": ^uint64(0) - 3} {
		p := newPair(t, true, 16384, worldConfig{}, qpConfig{privileged: true})
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, abi.SGE{Addr: addr, Length: 8, LKey: abi.ReservedLKey})
		p.b.receive(1, p.mb.sge(0, 9000))
		if st := p.a.send.wait(1)[0].Status; st != abi.WCLocProtErr {
			t.Errorf("%s: %v", name, st)
		}
	}
}
