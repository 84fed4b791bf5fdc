package functions

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ported returns an edit that enables a function in a tenant, with a port in memory that has
// further addresses.
func ported(r *Registry, who pfvf.ID, tenant uint32, a netip.Addr, further ...netip.Addr) Edit {
	return func(_, to *config.Function) error {
		_ = put(tenant, a)(nil, to)
		to.Port = &config.Port{Type: config.PortVhostUser, Socket: fmt.Sprintf("/nowhere/%d", who), Addresses: further}
		config.NamedFunction{PF: who.PF(), VF: who.VF(), Function: to}.SetPortDefaults(r.cfg)
		return nil
	}
}

// TestAddressesToldToPeers checks the limit on port addresses that a peer can be told of. A port
// with no more addresses than before, or in a tenant that is not shared with the peer, is always
// allowed.
func TestAddressesToldToPeers(t *testing.T) {
	const each = 16 // the most further addresses of a port
	r := newRegistry(t)
	further := func(n, count int) (list []netip.Addr) {
		for i := range count {
			list = append(list, netip.AddrFrom4([4]byte{10, 1 + byte(n>>8), byte(n), byte(i)}))
		}
		return list
	}
	n, left := 3, cm.MaxPorts
	for ; left > each; n++ {
		if err := r.make(id(0, n), ported(r, id(0, n), 7, address4(n), further(n, each)...)); err != nil {
			t.Fatal(err)
		}
		left -= each + 1
	}
	add := func(who, count int, tenant uint32) error {
		return r.make(id(0, who), ported(r, id(0, who), tenant, address4(who), further(who, count)...))
	}
	wantStatus(t, "one address too many", add(n, left, 7), abi.StatusNoResources, fmt.Sprintf("%d addresses of ports", cm.MaxPorts+1))
	if left > 0 {
		wantStatus(t, "as many as there can be", add(n, left-1, 7), abi.StatusOK, "")
	}
	wantStatus(t, "another port", add(n+1, 0, 7), abi.StatusNoResources, "addresses of ports")
	wantStatus(t, "in another tenant", add(n+1, each, 9), abi.StatusOK, "")
	wantStatus(t, "which moves in", add(n+1, 0, 7), abi.StatusNoResources, "addresses of ports")
	wantStatus(t, "a function without a port", r.make(id(0, n+2), put(7, address4(n+2))), abi.StatusOK, "")
	wantStatus(t, "no more than before", r.make(id(0, 3), func(_, to *config.Function) error { to.Weight = 2; return nil }), abi.StatusOK, "")
	wantStatus(t, "one less", add(3, each-1, 7), abi.StatusOK, "")
	wantStatus(t, "in its place", add(n+1, 0, 7), abi.StatusOK, "")
}

// TestGIDsToldToPeers checks that addresses that drivers add count like functions. Replacing
// another added address of the same function is always allowed.
func TestGIDsToldToPeers(t *testing.T) {
	r := newRegistry(t)
	for n := 3; n < 3+cm.MaxEndpoints-2; n++ { // VF 1 is one of them
		if err := r.make(id(0, n), put(7, address4(n))); err != nil {
			t.Fatal(err)
		}
	}
	gid := func(n int) [16]byte { return address4(10_000 + n).As16() }
	wantStatus(t, "the last", r.AddGID(id(0, 1), gid(1), [16]byte{}), abi.StatusOK, "")
	wantStatus(t, "one more", r.AddGID(id(0, 3), gid(2), [16]byte{}), abi.StatusNoResources, "host 2")
	wantStatus(t, "instead of another's", r.AddGID(id(0, 3), gid(2), gid(1)), abi.StatusNoResources, "host 2")
	wantStatus(t, "in a tenant that the peer has no part in", r.AddGID(id(0, 2), gid(3), [16]byte{}), abi.StatusOK, "")
	wantStatus(t, "instead of its own", r.AddGID(id(0, 1), gid(4), gid(1)), abi.StatusOK, "")
	wantStatus(t, "a function in its place", r.make(id(0, 4000), put(7, address4(4000))), abi.StatusNoResources, "1 GIDs")
	wantStatus(t, "another's address", r.AddGID(id(0, 3), address4(4).As16(), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf4")
	wantStatus(t, "another's GID", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf1")
	r.DelGID(id(0, 3), gid(4)) // not an address of this function
	wantStatus(t, "still another's", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf1")
	r.DelGID(id(0, 1), gid(4))
	wantStatus(t, "given up", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusOK, "")
}

// TestGIDIsTaken checks that no function can be set to an address that another function's driver
// added. One that its own driver added is allowed.
func TestGIDIsTaken(t *testing.T) {
	r := newRegistry(t)
	if err := r.AddGID(id(0, 1), address4(5).As16(), [16]byte{}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "another", r.make(id(0, 3), put(7, address4(5))), abi.StatusAddressInUse, "driver of h1.pf0.vf1")
	wantStatus(t, "in another tenant", r.make(id(0, 3), put(8, address4(5))), abi.StatusOK, "")
	wantStatus(t, "itself", r.make(id(0, 1), put(7, address4(5))), abi.StatusOK, "")
}

// TestDevicesAreTheirOwn checks that no two functions have ports with the same name, even in
// different namespaces: counters and captures use the name.
func TestDevicesAreTheirOwn(t *testing.T) {
	r := newRegistry(t)
	tap := func(who pfvf.ID, netns string) Edit {
		return func(_, to *config.Function) error {
			_ = put(7, address4(int(who.VF())))(nil, to)
			to.Port = &config.Port{Name: "vp1", Netns: netns}
			config.NamedFunction{PF: who.PF(), VF: who.VF(), Function: to}.SetPortDefaults(r.cfg)
			return nil
		}
	}
	wantStatus(t, "first", r.make(id(0, 3), tap(id(0, 3), "a")), abi.StatusOK, "")
	wantStatus(t, "itself", r.make(id(0, 3), tap(id(0, 3), "a")), abi.StatusOK, "")
	wantStatus(t, "second", r.make(id(0, 4), tap(id(0, 4), "a")), abi.StatusAddressInUse, `port.name: "vp1" is already that of h1.pf0.vf3`)
	wantStatus(t, "elsewhere", r.make(id(0, 4), tap(id(0, 4), "b")), abi.StatusAddressInUse, "vp1")
	wantStatus(t, "has none any more", r.make(id(0, 3), func(_, to *config.Function) error { to.Port = nil; return nil }), abi.StatusOK, "")
	wantStatus(t, "free now", r.make(id(0, 4), tap(id(0, 4), "a")), abi.StatusOK, "")
}

// TestPortFollowsTheMAC checks that a direct port with its function's MAC gets the function's new
// one, and that a port with a MAC of its own keeps it.
func TestPortFollowsTheMAC(t *testing.T) {
	r := newRegistry(t)
	for i, mode := range []string{config.PortDirect, config.PortBridged} {
		who, other := id(0, 3+i), config.MAC{2, 0, 0, 0, 0, byte(i + 1)}
		if err := r.make(who, func(_, to *config.Function) error {
			_ = put(7, address4(3+i))(nil, to)
			to.Port = &config.Port{Name: fmt.Sprintf("vp%d", i), Mode: mode}
			config.NamedFunction{PF: who.PF(), VF: who.VF(), Function: to}.SetPortDefaults(r.cfg)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		was := r.Settings(who).Port.MAC
		if err := r.make(who, func(_, to *config.Function) error { to.MAC = other; return nil }); err != nil {
			t.Fatal(err)
		}
		if is := r.Settings(who).Port.MAC; (is == other) != (mode == config.PortDirect) ||
			(is == was) == (mode == config.PortDirect) {
			t.Errorf("%s: the port's MAC was %s and is %s", mode, was, is)
		}
		port := r.Settings(who).Port
		if err := r.make(who, func(_, to *config.Function) error { to.Weight = 3; return nil }); err != nil ||
			r.Settings(who).Port != port {
			t.Errorf("%s: another setting changed the port: %v", mode, err)
		}
	}
}

// TestGuaranteesAreKept checks that guaranteed credits never exceed the host's, with one packet
// left for each function without a guarantee.
func TestGuaranteesAreKept(t *testing.T) {
	r := newRegistry(t)
	has := r.cfg.Credits.Host.RequestPacketTx
	guarantee := func(who int, n uint32) error {
		return r.make(id(0, who), func(_, to *config.Function) error {
			_ = put(7, address4(who))(nil, to)
			to.Credits.RequestPacketTx, to.Guarantee.RequestPacketTx = has, n
			return nil
		})
	}
	wantStatus(t, "all of it", guarantee(3, has), abi.StatusNoResources, "credits.host")
	wantStatus(t, "all but a packet's", guarantee(3, has-1), abi.StatusOK, "")
	wantStatus(t, "a packet's more", guarantee(3, has), abi.StatusNoResources, "credits.host")
	wantStatus(t, "a packet's to another", guarantee(4, 1), abi.StatusNoResources, "credits.host")
	wantStatus(t, "a function without", guarantee(5, 0), abi.StatusOK, "")
	wantStatus(t, "less", guarantee(3, has-2), abi.StatusOK, "")
	wantStatus(t, "a packet's now", guarantee(4, 1), abi.StatusOK, "")
	wantStatus(t, "that one is disabled", r.make(id(0, 4), Disable), abi.StatusOK, "")
	wantStatus(t, "what it had", guarantee(3, has-1), abi.StatusOK, "")
	wantStatus(t, "enabled again", r.make(id(0, 4), func(_, to *config.Function) error { on := true; to.Enabled = &on; return nil }), abi.StatusNoResources, "credits.host")
	for _, who := range []int{1, 2, 5} { // the only functions without a guarantee
		wantStatus(t, "disable", r.make(id(0, who), Disable), abi.StatusOK, "")
	}
	wantStatus(t, "all of it, and none goes without", guarantee(3, has), abi.StatusOK, "")
	wantStatus(t, "one more than there is", guarantee(4, 1), abi.StatusNoResources, "credits.host")
	wantStatus(t, "a function without", guarantee(5, 0), abi.StatusNoResources, "credits.host")
	wantStatus(t, "disable", r.make(id(0, 3), Disable), abi.StatusOK, "")
	wantStatus(t, "the only one, without", guarantee(5, 0), abi.StatusOK, "")
	wantStatus(t, "all of it to the only one", guarantee(5, has), abi.StatusOK, "")
}

// TestEachAttributeOfVF checks that SetVF sets the attributes in its mask, and refuses wrong
// values.
func TestEachAttributeOfVF(t *testing.T) {
	pf, vf := config.DefaultVF(1, 0, 0), config.DefaultVF(1, 0, 1)
	pf.Trust = true
	full := abi.SetVF{
		MAC: [6]byte{2, 0, 0, 0, 0, 9}, Tenant: 5, GID: address4(9).As16(), MaxTxRate: 77, Link: abi.LinkDisable, Trust: 1, SpoofCheck: 0,
		MaxQP: 3, MaxCQ: 4, MaxMR: 5, MaxPD: 6,
	}
	is := func(f *config.Function) string {
		q := &f.Limits.Quotas
		return fmt.Sprint(f.MAC, f.Tenant, f.Address, f.MaxTxRate, f.Link, f.Trust, *f.SpoofCheck, *q.Of(abi.ObjectQP), *q.Of(abi.ObjectCQ), *q.Of(abi.ObjectMR), *q.Of(abi.ObjectPD))
	}
	edits := map[uint32]func(f *config.Function){
		abi.VFAttrMAC:        func(f *config.Function) { f.MAC = full.MAC },
		abi.VFAttrTenant:     func(f *config.Function) { f.Tenant = 5 },
		abi.VFAttrGID:        func(f *config.Function) { f.Address = address4(9) },
		abi.VFAttrMaxTxRate:  func(f *config.Function) { f.MaxTxRate = 77 },
		abi.VFAttrLink:       func(f *config.Function) { f.Link = pfvf.Link(abi.LinkDisable) },
		abi.VFAttrTrust:      func(f *config.Function) { f.Trust = true },
		abi.VFAttrSpoofCheck: func(f *config.Function) { f.SpoofCheck = new(bool) },
		abi.VFAttrMaxQP:      func(f *config.Function) { *f.Limits.Quotas.Of(abi.ObjectQP) = 3 },
		abi.VFAttrMaxCQ:      func(f *config.Function) { *f.Limits.Quotas.Of(abi.ObjectCQ) = 4 },
		abi.VFAttrMaxMR:      func(f *config.Function) { *f.Limits.Quotas.Of(abi.ObjectMR) = 5 },
		abi.VFAttrMaxPD:      func(f *config.Function) { *f.Limits.Quotas.Of(abi.ObjectPD) = 6 },
	}
	everything := uint32(0)
	for bit, edit := range edits {
		everything |= bit
		to, want, c := vf, vf, full
		edit(&want)
		if c.Mask = bit; SetVF(&pf, &to, &c) != nil || is(&to) != is(&want) {
			t.Errorf("bit %#x: %s, want %s", bit, is(&to), is(&want))
		}
	}
	for _, c := range []struct {
		what   string
		change func(c *abi.SetVF)
		ok     bool
	}{
		{"everything", func(*abi.SetVF) {}, true},
		{"nothing", func(c *abi.SetVF) { c.Mask = 0 }, true},
		{"the bit above the highest", func(c *abi.SetVF) { c.Mask = abi.VFAttrMaxPD << 1 }, false},
		{"a trust of 2", func(c *abi.SetVF) { c.Trust = 2 }, false},
		{"a spoof check of 1", func(c *abi.SetVF) { c.SpoofCheck = 1 }, true},
		{"a spoof check of 2", func(c *abi.SetVF) { c.SpoofCheck = 2 }, false},
		{"a link above the highest", func(c *abi.SetVF) { c.Link = abi.LinkDisable + 1 }, false},
		{"a group's MAC", func(c *abi.SetVF) { c.MAC[0] = 3 }, false},
		{"no MAC", func(c *abi.SetVF) { c.MAC = [6]byte{} }, false},
		{"a quota of 0", func(c *abi.SetVF) { c.MaxPD = 0 }, false},
	} {
		to, cmd := vf, full
		cmd.Mask = everything
		c.change(&cmd)
		if err := SetVF(&pf, &to, &cmd); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	// A PF that is not trusted may take trust away, and turn the spoof check on.
	pf.Trust = false
	to := vf
	to.Trust, to.SpoofCheck = true, new(bool)
	if err := SetVF(&pf, &to, &abi.SetVF{Mask: abi.VFAttrTrust | abi.VFAttrSpoofCheck, SpoofCheck: 1}); err != nil || to.Trust || !*to.SpoofCheck {
		t.Errorf("%v, trust %v, spoof check %v", err, to.Trust, *to.SpoofCheck)
	}
}

// TestWindowOfVF checks that a length of 0 removes the window.
func TestWindowOfVF(t *testing.T) {
	to := config.DefaultVF(1, 0, 1)
	SetWindow(&to, &abi.SetVFWindow{Address: 8192, Length: 4096})
	if w := to.DMAWindow; w == nil || w.Address != 8192 || w.Size != 4096 {
		t.Errorf("%+v", w)
	}
	if SetWindow(&to, &abi.SetVFWindow{Address: 8192}); to.DMAWindow != nil {
		t.Errorf("%+v", to.DMAWindow)
	}
}

// TestGuestOfVF checks that a VF with a guest keeps it when its PF enables it.
func TestGuestOfVF(t *testing.T) {
	pf, vf := config.DefaultVF(1, 0, 0), config.DefaultVF(1, 0, 1)
	own := &config.Guest{CID: 9}
	pf.Guest, vf.Guest = &config.Guest{Unix: "bare"}, own
	if err := Enable(&pf, &vf); err != nil || vf.Guest != own {
		t.Errorf("%v, %+v", err, vf.Guest)
	}
	if err := Disable(&pf, &vf); err != nil || *vf.Enabled {
		t.Error(err)
	}
}

// TestPossibleFunctions checks which PFs and VFs are possible, up to the last number.
func TestPossibleFunctions(t *testing.T) {
	r := newRegistry(t)
	for who, want := range map[pfvf.ID]bool{
		id(0, 0): true, id(0, 4095): true, id(3, 0): true, id(3, 2): true, id(3, 3): false, id(1, 0): false, id(2, 1): false,
		2 << 16: false, pfvf.MaxID: false, 1<<24 | 1<<16: false,
	} {
		if r.Possible(who) != want || (r.Find(who) == nil) != want {
			t.Errorf("%s: possible %v", who, !want)
		}
	}
}
