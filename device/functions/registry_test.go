package functions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// newRegistry returns the registry of a NIC with two PFs and a peer that shares tenant 7.
func newRegistry(t *testing.T) *Registry {
	t.Helper()
	c, err := config.Parse([]byte(`
nic: {host: 1}
uplink: {backend: memory, address: 10.99.0.1/24}
cm: {listen: "127.0.0.1:1", identity: unused}
peers:
  - {host: 2, underlay: 10.99.0.2, cm: "127.0.0.1:2", identity: vnic://test/host/2, tenants: [7]}
functions:
  - pf: 0
    vf_count: 4095
    vfs: [{vf: 1, tenant: 7, address: 192.168.0.1, guest: {unix: bare}}, {vf: 2, tenant: 8, address: 192.168.0.1, guest: {unix: bare}}]
  - {pf: 3, vf_count: 2}
attach: [{type: unix, name: bare, socket: /nowhere}]
`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func id(pf, vf int) pfvf.ID     { return pfvf.ID(1<<16 | pf<<12 | vf) }
func address4(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// put returns an edit that enables a function with an address in a tenant.
func put(tenant uint32, a netip.Addr) Edit {
	return func(_, to *config.Function) error {
		on := true
		to.Tenant, to.Address, to.Enabled = tenant, a, &on
		return nil
	}
}

// make carries out a change, if it is allowed.
func (r *Registry) make(id pfvf.ID, edit Edit) error {
	c, err := r.Change(id, edit)
	if err == nil {
		r.Commit(&c)
	}
	return err
}

func wantStatus(t *testing.T, what string, err error, want abi.Status, text string) {
	t.Helper()
	if StatusOf(err) != want || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

// TestNoFunctionGetsTheAddressOfAnother checks that no function gets an address of another one,
// enabled or not, and that an address that was given up is free.
func TestNoFunctionGetsTheAddressOfAnother(t *testing.T) {
	r := newRegistry(t)
	a := address4(1)
	wantStatus(t, "a tenant's address", r.make(id(0, 3), put(7, netip.MustParseAddr("192.168.0.1"))), abi.StatusAddressInUse, "h1.pf0.vf1")
	wantStatus(t, "first", r.make(id(0, 3), put(7, a)), abi.StatusOK, "")
	wantStatus(t, "second", r.make(id(0, 4), put(7, a)), abi.StatusAddressInUse, "h1.pf0.vf3")
	wantStatus(t, "in another tenant", r.make(id(0, 4), put(8, a)), abi.StatusOK, "")
	wantStatus(t, "disable", r.make(id(0, 3), Disable), abi.StatusOK, "")
	wantStatus(t, "of one that is disabled", r.make(id(3, 1), put(7, a)), abi.StatusAddressInUse, "h1.pf0.vf3")
	wantStatus(t, "moves away", r.make(id(0, 3), put(7, address4(2))), abi.StatusOK, "")
	wantStatus(t, "free now", r.make(id(3, 1), put(7, a)), abi.StatusOK, "")
	mac := func(_, to *config.Function) error { to.MAC = r.Settings(id(0, 3)).MAC; return nil }
	wantStatus(t, "a MAC", r.make(id(3, 1), mac), abi.StatusAddressInUse, "mac")
	for _, who := range []pfvf.ID{id(3, 3), id(1, 0), 2<<16 | 1, 1 << 30} {
		wantStatus(t, who.String(), r.make(who, Disable), abi.StatusNotFound, "there is no function")
	}
	wantStatus(t, "an edit that refuses", r.make(id(3, 1), func(_, to *config.Function) error {
		to.Weight = 9
		return errors.New("no")
	}), abi.StatusInvalidArgument, "no")
	if r.Settings(id(3, 1)).Weight == 9 || r.Enabled(0) != 4 || r.Enabled(3) != 1 {
		t.Errorf("%d and %d VFs", r.Enabled(0), r.Enabled(3))
	}
}

// TestNoMoreFunctionsThanPeersCanBeTold checks that a function beyond what a peer can be told of is
// refused without any effect. Functions of other tenants do not count.
func TestNoMoreFunctionsThanPeersCanBeTold(t *testing.T) {
	r := newRegistry(t)
	for n := 3; n < 3+cm.MaxEndpoints-1; n++ { // VF 1 is one of them
		if err := r.make(id(0, n), put(7, address4(n))); err != nil {
			t.Fatal(err)
		}
	}
	last := id(0, 4000)
	before := r.Settings(last)
	wantStatus(t, "one more", r.make(last, put(7, address4(4000))), abi.StatusNoResources, "2049 functions")
	wantStatus(t, "one that moves in", r.make(id(0, 2), put(7, address4(4001))), abi.StatusNoResources, "2049 functions")
	if !reflect.DeepEqual(r.Settings(last), before) || r.Settings(id(0, 2)).Tenant != 8 {
		t.Error("it is done all the same")
	}
	wantStatus(t, "of another tenant", r.make(last, put(9, address4(4000))), abi.StatusOK, "")
	wantStatus(t, "no more than before", r.make(id(0, 3), func(_, to *config.Function) error { to.Weight = 3; return nil }), abi.StatusOK, "")
	wantStatus(t, "one less", r.make(id(0, 3), Disable), abi.StatusOK, "")
	wantStatus(t, "in its place", r.make(last, put(7, address4(4000))), abi.StatusOK, "")
	if was := r.Settings(id(0, 3)); was.Tenant != 7 {
		t.Fatalf("a disabled function is of tenant %d", was.Tenant)
	}
	wantStatus(t, "enabled once more, in its tenant", r.make(id(0, 3), put(7, address4(3))), abi.StatusNoResources, "2049 functions")
}

// TestCountsAreTrue checks that after any changes the counts kept beside the settings are right.
func TestCountsAreTrue(t *testing.T) {
	ports, guarantees, added := 0, 0, 0
	for seed := range uint64(20) {
		r, rng := newRegistry(t), rand.New(rand.NewPCG(seed, 1))
		for range 300 {
			who := id([]int{0, 3}[rng.IntN(2)], rng.IntN(6))
			_ = r.make(who, func(_, to *config.Function) error {
				switch rng.IntN(5) {
				case 0:
					return put(7+rng.Uint32N(3), address4(rng.IntN(5)))(nil, to)
				case 1:
					return Disable(nil, to)
				case 2:
					to.Guarantee.RequestPacketTx = rng.Uint32N(3)
				case 3:
					to.MAC = config.FunctionMAC("1", 0, uint16(rng.IntN(8)))
				case 4:
					to.Port = nil
					if rng.IntN(2) == 0 {
						to.Port = &config.Port{Name: fmt.Sprintf("vp%d", rng.IntN(4)), Addresses: []netip.Addr{address4(4 + rng.IntN(4))}}
						config.NamedFunction{PF: who.PF(), VF: who.VF(), Function: to}.SetPortDefaults(r.cfg)
					}
				}
				return nil
			})
			if who := id(0, rng.IntN(6)); *r.Settings(who).Enabled {
				gid := func() [16]byte { return address4(rng.IntN(8)).As16() }
				switch rng.IntN(4) {
				case 0, 1:
					if r.AddGID(who, gid(), gid()) == nil {
						added++
					}
				case 2:
					r.DelGID(who, gid())
				case 3:
					if had := len(r.gids.of[who]) > 0; r.DelGIDs(who) != had {
						t.Fatalf("seed %d: %s had GIDs: %t", seed, who, had)
					}
				}
			}
			fresh := &Registry{
				cfg: r.cfg, peers: r.peers, vfs: r.vfs, is: map[pfvf.ID]config.Function{}, taken: r.cfg.Taken(), gids: newGIDs(), tenants: map[uint32]count{}, guests: map[uint32]int{}, guarantee: map[pfvf.ID]config.Credits{},
			}
			r.Each(func(id pfvf.ID, is *config.Function) { fresh.put(id, is) })
			for who, list := range r.gids.of {
				for _, a := range list {
					if other, taken := r.taken.Address(a.tenant, a.addr); taken && (other != who.String() || a.addr == r.Settings(who).Address) || a.tenant != r.Settings(who).Tenant || !*r.Settings(who).Enabled {
						t.Fatalf("seed %d: %s has %v added", seed, who, a)
					}
					fresh.gids.add(who, a)
				}
			}
			if !reflect.DeepEqual(r, fresh) {
				t.Fatalf("seed %d: kept\n%+v\ncounted\n%+v", seed, r, fresh)
			}
			n, macs := 0, map[config.MAC]bool{}
			r.Each(func(_ pfvf.ID, is *config.Function) {
				if macs[is.MAC] = true; is.Port != nil {
					n++
				}
			})
			if ports, guarantees = max(ports, n), max(guarantees, len(r.guarantee)); len(macs) != len(r.is) {
				t.Fatalf("seed %d: %d MACs of %d functions", seed, len(macs), len(r.is))
			}
		}
	}
	if ports < 2 || guarantees < 2 || added < 100 {
		t.Errorf("no more than %d ports and %d guarantees at a time, %d GIDs added", ports, guarantees, added)
	}
}

// TestAVFWithDefaultSettingsTakesNoMemory checks that VFs with default settings are not kept; PFs
// always are.
func TestAVFWithDefaultSettingsTakesNoMemory(t *testing.T) {
	r := newRegistry(t)
	before := len(r.is)
	who := id(0, 9)
	if err := r.make(who, put(9, address4(1))); err != nil {
		t.Fatal(err)
	}
	if len(r.is) != before+1 {
		t.Errorf("%d functions kept, want %d", len(r.is), before+1)
	}
	if err := r.make(who, func(_, to *config.Function) error {
		*to = r.cfg.DefaultVF(who.PF(), who.VF())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(r.is) != before {
		t.Errorf("%d functions kept after one is as by default again, want %d", len(r.is), before)
	}
	if _, kept := r.is[id(3, 0)]; !kept {
		t.Error("a PF as by default is not kept")
	}
}

// TestWhatPeersAreToldIsCounted checks the counts of what peers are told: enabled functions, and
// the addresses of those with a port. Removing them brings the counts back to zero.
func TestWhatPeersAreToldIsCounted(t *testing.T) {
	r := newRegistry(t)
	on, enabled := r.on, r.enabled[0]
	for i, step := range []struct {
		who  pfvf.ID
		edit Edit
		want count // of tenant 9
		more int   // enabled functions
	}{
		{id(0, 9), put(9, address4(1)), count{functions: 1}, 1},
		{id(0, 10), put(9, address4(2)), count{functions: 2}, 2},
		{id(0, 10), func(_, to *config.Function) error {
			to.Port = &config.Port{Name: "vp0", Addresses: []netip.Addr{address4(3), address4(4)}}
			config.NamedFunction{PF: 0, VF: 10, Function: to}.SetPortDefaults(r.cfg)
			return nil
		}, count{functions: 2, addresses: 3}, 2},
		{id(0, 9), Disable, count{functions: 1, addresses: 3}, 1},
		{id(0, 10), func(_, to *config.Function) error { to.Port = nil; return nil }, count{functions: 1}, 1},
		{id(0, 10), Disable, count{}, 0},
	} {
		if err := r.make(step.who, step.edit); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if r.tenants[9] != step.want || r.on != on+step.more || r.enabled[0] != enabled+step.more {
			t.Errorf("step %d: %+v, %d enabled, %d of pf0; want %+v, %d and %d", i, r.tenants[9], r.on, r.enabled[0], step.want, on+step.more, enabled+step.more)
		}
	}
	if _, left := r.tenants[9]; left {
		t.Error("a tenant without functions is kept")
	}
	for who, want := range map[pfvf.ID]string{id(0, 4095) | 1<<17: "this NIC is host 1", id(5, 0): "add {pf: 5}", id(3, 4): "VFs of pf3 go up to 2"} {
		if got := r.inReach(who); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", who, got, want)
		}
	}
}

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

// TestNoMoreAddressesThanPeersCanBeTold checks the limit on port addresses that a peer can be told
// of. A port with no more addresses than before, or in a tenant that is not shared with the peer,
// is always allowed.
func TestNoMoreAddressesThanPeersCanBeTold(t *testing.T) {
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

// TestNoTwoPortsHaveOneName checks that no two functions have ports with the same name, even in
// different namespaces: counters and captures use the name.
func TestNoTwoPortsHaveOneName(t *testing.T) {
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
	wantStatus(t, "second", r.make(id(0, 4), tap(id(0, 4), "a")), abi.StatusAddressInUse, `port.name: "vp1" is already used by h1.pf0.vf3`)
	wantStatus(t, "elsewhere", r.make(id(0, 4), tap(id(0, 4), "b")), abi.StatusAddressInUse, "vp1")
	wantStatus(t, "has none any more", r.make(id(0, 3), func(_, to *config.Function) error { to.Port = nil; return nil }), abi.StatusOK, "")
	wantStatus(t, "free now", r.make(id(0, 4), tap(id(0, 4), "a")), abi.StatusOK, "")
}

// TestADirectPortFollowsTheMAC checks that a direct port with its function's MAC gets the
// function's new one, and that a port with a MAC of its own keeps it.
func TestADirectPortFollowsTheMAC(t *testing.T) {
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

// TestWindowsOfAGuest checks that a guest with windows gets no more functions than its PCI bus has
// room for, by an operator or a PF, as when the file is read. One without windows gets any number.
func TestWindowsOfAGuest(t *testing.T) {
	r := newRegistry(t)
	r.cfg.Attach = append(r.cfg.Attach,
		config.Attach{Type: config.AttachVhostUser, CID: 3, Windows: true, Socket: "/a"}, config.Attach{Type: config.AttachVhostUser, CID: 4, Socket: "/b"})
	give := func(vf int, cid uint32) error {
		return r.make(id(0, vf), func(_, to *config.Function) error {
			to.Guest, to.Tenant, to.Address = &config.Guest{CID: cid}, 9, address4(vf)
			return nil
		})
	}
	for _, cid := range []uint32{3, 4} {
		for n := range config.MaxWindows {
			if err := give(int(cid)*500+n, cid); err != nil {
				t.Fatal(cid, n, err)
			}
		}
	}
	wantStatus(t, "one more", give(1, 3), abi.StatusNoResources, "guest 3 has 160 functions")
	wantStatus(t, "one more of a guest without windows", give(2, 4), abi.StatusOK, "")
	wantStatus(t, "the same again", give(1500, 3), abi.StatusOK, "")
	wantStatus(t, "one that leaves", give(1501, 4), abi.StatusOK, "")
	wantStatus(t, "another in its place", give(1, 3), abi.StatusOK, "")
}

// TestVFsGoUpToTheirCount checks which PFs and VFs are possible, up to the last number.
func TestVFsGoUpToTheirCount(t *testing.T) {
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
