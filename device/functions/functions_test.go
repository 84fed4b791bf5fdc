package functions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
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

func id(pf, vf int) pfvf.ID { return pfvf.ID(1<<16 | pf<<12 | vf) }

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

// TestTaken checks that no function gets an address of another one, enabled or not, and that an
// address that was given up is free.
func TestTaken(t *testing.T) {
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
		wantStatus(t, who.String(), r.make(who, Disable), abi.StatusNotFound, "there is none")
	}
	wantStatus(t, "an edit that refuses", r.make(id(3, 1), func(_, to *config.Function) error {
		to.Weight = 9
		return errors.New("no")
	}), abi.StatusInvalidArgument, "no")
	if r.Settings(id(3, 1)).Weight == 9 || r.Enabled(0) != 4 || r.Enabled(3) != 1 {
		t.Errorf("%d and %d VFs", r.Enabled(0), r.Enabled(3))
	}
}

// TestToldToPeers checks that a function beyond what a peer can be told of is refused without any
// effect. Functions of other tenants do not count.
func TestToldToPeers(t *testing.T) {
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

// TestPFReach checks that a PF that is not trusted can only give what it has.
func TestPFReach(t *testing.T) {
	pf, vf := config.DefaultVF(1, 0, 0), config.DefaultVF(1, 0, 1)
	pf.Tenant = 7
	for _, tc := range []struct {
		c    abi.SetVF
		want abi.Status
	}{
		{abi.SetVF{Mask: abi.VFAttrTenant, Tenant: 7}, abi.StatusOK},
		{abi.SetVF{Mask: abi.VFAttrTenant, Tenant: 8}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrTrust, Trust: 1}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrSpoofCheck}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrMaxQP, MaxQP: 1 << 20}, abi.StatusTooLarge},
		{abi.SetVF{Mask: abi.VFAttrMaxQP}, abi.StatusInvalidArgument},
		{abi.SetVF{Mask: 1 << 31}, abi.StatusInvalidArgument},
	} {
		for _, trusted := range []bool{false, true} {
			pf.Trust = trusted
			want := tc.want
			if trusted && (want == abi.StatusDenied || want == abi.StatusTooLarge) {
				want = abi.StatusOK
			}
			to := vf
			if st := StatusOf(SetVF(&pf, &to, &tc.c)); st != want {
				t.Errorf("trusted %t, %+v: %s, want %s", trusted, tc.c, st, want)
			}
		}
	}
	guest := config.Guest{Unix: "bare"}
	pf.Guest = &guest
	if err := Enable(&pf, &vf); err != nil || vf.Guest != &guest || !*vf.Enabled {
		t.Errorf("%v, %+v", err, vf)
	}
}

// TestOperatorIsTold checks the errors for wrong requests of operators.
func TestOperatorIsTold(t *testing.T) {
	r := newRegistry(t)
	for text, c := range map[string]control.FunctionChange{
		"nothing to change":  {},
		`action "explode"`:   {Action: "explode"},
		"h1.pf0.vf1: weight": {Set: map[string]string{"weight": "heavy"}},
	} {
		if err := r.Recall(id(0, 1), &c); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", c, err, text)
		}
	}
	if err := r.Recall(id(0, 1), &control.FunctionChange{Action: "disable"}); err != nil || *r.Settings(id(0, 1)).Enabled {
		t.Error(err)
	}
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
					to.MAC = config.FunctionMAC(1, 0, uint16(rng.IntN(8)))
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
				cfg: r.cfg, vfs: r.vfs, is: map[pfvf.ID]config.Function{}, taken: r.cfg.Taken(), gids: newGIDs(), tenants: map[uint32]count{}, guarantee: map[pfvf.ID]config.Credits{},
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

// TestDefaultsTakeNoRoom checks that VFs with default settings are not kept; PFs always are.
func TestDefaultsTakeNoRoom(t *testing.T) {
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
		*to = config.DefaultVF(who.Host(), who.PF(), who.VF())
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

// TestObjectsOfVF checks that SetVFObjects sets only the quotas of its mask, up to the PF's own
// unless the PF is trusted, and refuses wrong ones.
func TestObjectsOfVF(t *testing.T) {
	pf, vf := config.DefaultVF(1, 0, 0), config.DefaultVF(1, 0, 1)
	var counts abi.ObjectCounts
	for k := range abi.NumObjects {
		*counts.Of(k) = uint32(k) + 1
	}
	set := func(to *config.Function, mask uint32, counts *abi.ObjectCounts) abi.Status {
		c := abi.SetVFObjects{Mask: mask}
		counts.Marshal(c.Counts[:])
		return StatusOf(SetObjects(&pf, to, &c))
	}
	for k := range abi.NumObjects {
		to := vf
		if st := set(&to, 1<<k, &counts); st != abi.StatusOK {
			t.Fatal(st)
		}
		for other := range abi.NumObjects {
			want := *vf.Limits.Quotas.Of(other)
			if other == k {
				want = uint32(k) + 1
			}
			if got := *to.Limits.Quotas.Of(other); got != want {
				t.Errorf("setting %s: %s is %d, want %d", k.Info().Key, other.Info().Key, got, want)
			}
		}
		for n, want := range map[uint32]abi.Status{0: abi.StatusInvalidArgument, *pf.Limits.Quotas.Of(k): abi.StatusOK, *pf.Limits.Quotas.Of(k) + 1: abi.StatusTooLarge} {
			c, to := counts, vf
			*c.Of(k) = n
			if st := set(&to, 1<<k, &c); st != want {
				t.Errorf("%s: %d: %s, want %s", k.Info().Key, n, st, want)
			}
			pf.Trust = true
			if st := set(&to, 1<<k, &c); (st == abi.StatusOK) != (n != 0) {
				t.Errorf("%s: %d of a trusted PF: %s", k.Info().Key, n, st)
			}
			pf.Trust = false
		}
	}
	if st := set(&vf, 1<<abi.NumObjects, &counts); st != abi.StatusInvalidArgument {
		t.Errorf("a bit that is not defined: %s", st)
	}
}

// TestCreditsOfVF checks that SetVFCredits sets only the counters of its mask: limits up to the
// PF's own and never 0, guarantees by a trusted PF only.
func TestCreditsOfVF(t *testing.T) {
	pf, vf := config.DefaultVF(1, 0, 0), config.DefaultVF(1, 0, 1)
	own := pf.Credits.Cost()
	for i := range own {
		own[i] = uint32(100 * (i + 1))
	}
	pf.Credits.SetCost(own)
	set := func(mask uint32, part abi.CreditPart, n uint32) (is, was credit.Cost, st abi.Status) {
		to := vf
		c := abi.SetVFCredits{Mask: mask, Part: part}
		for i := range own {
			binary.LittleEndian.PutUint32(c.Counts[4*i:], n)
		}
		st = StatusOf(SetCredits(&pf, &to, &c))
		if part == abi.CreditGuarantee {
			return to.Guarantee.Cost(), vf.Guarantee.Cost(), st
		}
		return to.Credits.Cost(), vf.Credits.Cost(), st
	}
	for i := range own {
		for _, c := range []struct {
			part    abi.CreditPart
			n       uint32
			trusted bool
			want    abi.Status
		}{
			{abi.CreditLimit, own[i], false, abi.StatusOK},
			{abi.CreditLimit, 1, false, abi.StatusOK},
			{abi.CreditLimit, own[i] + 1, false, abi.StatusTooLarge},
			{abi.CreditLimit, own[i] + 1, true, abi.StatusOK},
			{abi.CreditLimit, 0, true, abi.StatusInvalidArgument},
			{abi.CreditGuarantee, 1, false, abi.StatusDenied},
			{abi.CreditGuarantee, 0, true, abi.StatusOK},
			{abi.CreditGuarantee, 7, true, abi.StatusOK},
		} {
			pf.Trust = c.trusted
			is, want, st := set(1<<i, c.part, c.n)
			if st != c.want {
				t.Errorf("counter %d, %+v: %s", i, c, st)
			}
			if c.want == abi.StatusOK {
				want[i] = c.n
			}
			if is != want {
				t.Errorf("counter %d, %+v: %v, want %v", i, c, is, want)
			}
		}
	}
	pf.Trust = true
	if _, _, st := set(1<<len(own), abi.CreditLimit, 1); st != abi.StatusInvalidArgument {
		t.Errorf("a bit that is not defined: %s", st)
	}
	if _, _, st := set(1, abi.CreditGuarantee+1, 1); st != abi.StatusInvalidArgument {
		t.Errorf("a part that is not defined: %s", st)
	}
}

// TestToldInNumbers checks the counts of what peers are told: enabled functions, and the addresses
// of those with a port. Removing them brings the counts back to zero.
func TestToldInNumbers(t *testing.T) {
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
