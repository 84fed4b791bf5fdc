package functions

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEachAttributeOfAVFIsSetAlone checks that SetVF sets the attributes in its mask, and refuses
// wrong values.
func TestEachAttributeOfAVFIsSetAlone(t *testing.T) {
	pf, vf := defaultVF(0, 0), defaultVF(0, 1)
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

// TestAPFSetsTheWindowOfItsVF checks that a length of 0 removes the window.
func TestAPFSetsTheWindowOfItsVF(t *testing.T) {
	to := defaultVF(0, 1)
	SetWindow(&to, &abi.SetVFWindow{Address: 8192, Length: 4096})
	if w := to.DMAWindow; w == nil || w.Address != 8192 || w.Size != 4096 {
		t.Errorf("%+v", w)
	}
	if SetWindow(&to, &abi.SetVFWindow{Address: 8192}); to.DMAWindow != nil {
		t.Errorf("%+v", to.DMAWindow)
	}
}

// TestAVFWithoutAGuestGoesToThePFsGuest checks that a VF with a guest keeps it when its PF enables
// it.
func TestAVFWithoutAGuestGoesToThePFsGuest(t *testing.T) {
	pf, vf := defaultVF(0, 0), defaultVF(0, 1)
	own := &config.Guest{CID: 9}
	pf.Guest, vf.Guest = &config.Guest{Unix: "bare"}, own
	if err := Enable(&pf, &vf); err != nil || vf.Guest != own {
		t.Errorf("%v, %+v", err, vf.Guest)
	}
	if err := Disable(&pf, &vf); err != nil || *vf.Enabled {
		t.Error(err)
	}
}

// TestAPFGivesNoMoreThanItHas checks that a PF that is not trusted can only give what it has.
func TestAPFGivesNoMoreThanItHas(t *testing.T) {
	pf, vf := defaultVF(0, 0), defaultVF(0, 1)
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

// TestAWrongRequestOfAnOperatorIsExplained checks the errors for wrong requests of operators.
func TestAWrongRequestOfAnOperatorIsExplained(t *testing.T) {
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

// TestAPFSetsTheQuotasOfItsVF checks that SetVFObjects sets only the quotas of its mask, up to the
// PF's own unless the PF is trusted, and refuses wrong ones.
func TestAPFSetsTheQuotasOfItsVF(t *testing.T) {
	pf, vf := defaultVF(0, 0), defaultVF(0, 1)
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

// TestAPFSetsTheCreditsOfItsVF checks that SetVFCredits sets only the counters of its mask: limits
// up to the PF's own and never 0, guarantees by a trusted PF only.
func TestAPFSetsTheCreditsOfItsVF(t *testing.T) {
	pf, vf := defaultVF(0, 0), defaultVF(0, 1)
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

const ruled = `

nic: {host: 1}
control: /run/c.sock
uplink: {name: up0, bridge: br0, address: 10.99.0.1/24, mtu: 1500, mac: 02:00:00:00:00:01}
rdma: {mtu: 1024}
cm: {listen: "127.0.0.1:1", identity: unused}
peers:
  - {host: 2, underlay: 10.99.0.2, cm: "127.0.0.1:2", identity: vnic://test/host/2, tenants: [7], functions: [{tenant: 7, address: 10.0.0.21}]}
tenants: [{tenant: 7, subnets: [10.0.0.0/24], routers: [10.0.0.254]}]
attach: [{type: unix, name: bare, socket: /run/a.sock}]
functions:
  - pf: 0
    vf_count: 4
    vfs:
      - {vf: 1, tenant: 7, address: 10.0.0.11, mac: 02:00:00:00:00:11, port: {mode: bridged, name: vp1, mac: 02:00:00:00:00:12, addresses: [10.0.0.12]}}
      - {vf: 2, tenant: 8, address: 10.0.0.11, guest: {unix: bare}, port: {type: vhost-user, name: vp2, socket: /run/p.sock}}
`

// TestRulesOfTheFileHoldWhileItRuns checks that operators are refused exactly the settings that the
// check of a configuration file refuses.
func TestRulesOfTheFileHoldWhileItRuns(t *testing.T) {
	const free = "tenant: 7, address: 10.0.0.13"
	port := func(is string) string { return free + ", port: {" + is + "}" }
	for name, tc := range map[string]struct {
		file   string            // the settings of VF 3 in a file
		set    map[string]string // the same settings, made by an operator
		status abi.Status
	}{
		"nothing wrong":             {free, map[string]string{"tenant": "7", "address": "10.0.0.13"}, abi.StatusOK},
		"a peer's address":          {"tenant: 7, address: 10.0.0.21", map[string]string{"tenant": "7", "address": "10.0.0.21"}, abi.StatusAddressInUse},
		"in another tenant":         {"tenant: 8, address: 10.0.0.21", map[string]string{"tenant": "8", "address": "10.0.0.21"}, abi.StatusOK},
		"a router's address":        {"tenant: 7, address: 10.0.0.254", map[string]string{"tenant": "7", "address": "10.0.0.254"}, abi.StatusAddressInUse},
		"another's address":         {"tenant: 7, address: 10.0.0.11", map[string]string{"tenant": "7", "address": "10.0.0.11"}, abi.StatusAddressInUse},
		"another port's address":    {"tenant: 7, address: 10.0.0.12", map[string]string{"tenant": "7", "address": "10.0.0.12"}, abi.StatusAddressInUse},
		"a multicast address":       {"tenant: 7, address: 224.0.0.1", map[string]string{"tenant": "7", "address": "224.0.0.1"}, abi.StatusInvalidArgument},
		"the uplink's MAC":          {free + ", mac: 02:00:00:00:00:01", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:01"}, abi.StatusAddressInUse},
		"another's MAC":             {free + ", mac: 02:00:00:00:00:11", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:11"}, abi.StatusAddressInUse},
		"another port's MAC":        {free + ", mac: 02:00:00:00:00:12", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:12"}, abi.StatusAddressInUse},
		"a port with a peer's":      {port("mode: direct, name: vp3, addresses: [10.0.0.21]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.21"}, abi.StatusAddressInUse},
		"a port with another's":     {port("mode: direct, name: vp3, addresses: [10.0.0.12]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.12"}, abi.StatusAddressInUse},
		"a port with its own":       {port("mode: direct, name: vp3, addresses: [10.0.0.13]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.13"}, abi.StatusAddressInUse},
		"a port outside":            {port("mode: direct, name: vp3, addresses: [10.0.1.1]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.1.1"}, abi.StatusInvalidArgument},
		"a port":                    {port("mode: direct, name: vp3, addresses: [10.0.0.14]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.14"}, abi.StatusOK},
		"a port like another":       {port("mode: direct, name: vp1"), map[string]string{"port": "mode=direct,name=vp1"}, abi.StatusAddressInUse},
		"the same elsewhere":        {port("mode: direct, name: vp1, netns: box"), map[string]string{"port": "mode=direct,name=vp1,netns=box"}, abi.StatusAddressInUse},
		"a port like the uplink":    {port("mode: direct, name: up0"), map[string]string{"port": "mode=direct,name=up0"}, abi.StatusAddressInUse},
		"a port like the bridge":    {port("mode: direct, name: br0"), map[string]string{"port": "mode=direct,name=br0"}, abi.StatusAddressInUse},
		"a port's MAC of another":   {port("mode: bridged, name: vp3, mac: 02:00:00:00:00:12"), map[string]string{"port": "mode=bridged,name=vp3,mac=02:00:00:00:00:12"}, abi.StatusAddressInUse},
		"a port on the uplink's":    {port("mode: bridged, name: vp3, bridge: br0"), map[string]string{"port": "mode=bridged,name=vp3,bridge=br0"}, abi.StatusInvalidArgument},
		"a port that is too long":   {port("mode: direct, name: vp3, mtu: 1500"), map[string]string{"port": "mode=direct,name=vp3,mtu=1500"}, abi.StatusInvalidArgument},
		"another port's socket":     {port("type: vhost-user, name: vp3, socket: /run/p.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/p.sock"}, abi.StatusAddressInUse},
		"an attachment's socket":    {port("type: vhost-user, name: vp3, socket: /run/a.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/a.sock"}, abi.StatusAddressInUse},
		"the control socket":        {port("type: vhost-user, name: vp3, socket: /run/c.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/c.sock"}, abi.StatusAddressInUse},
		"a guest that there is not": {free + ", guest: {unix: nobody}", map[string]string{"tenant": "7", "address": "10.0.0.13", "guest": "unix:nobody"}, abi.StatusInvalidArgument},
	} {
		_, inFile := config.Parse([]byte(ruled + fmt.Sprintf("      - {vf: 3, %s}\n", tc.file)))
		c, err := config.Parse([]byte(ruled))
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if tc.set["port"] != "" {
			tc.set["tenant"], tc.set["address"] = "7", "10.0.0.13"
		}
		edit, err := r.ByOperator(id(0, 3), &control.FunctionChange{Set: tc.set})
		if err == nil {
			_, err = r.Change(id(0, 3), edit)
		}
		if (inFile == nil) != (tc.status == abi.StatusOK) || StatusOf(err) != tc.status {
			t.Errorf("%s: want %s\nin the file: %v\nwhile it runs: %v", name, tc.status, inFile, err)
		}
	}
}

// defaultVF returns a function of NIC 1 that the configuration does not describe.
func defaultVF(pf uint8, vf uint16) config.Function {
	nic := config.Config{CM: config.CM{Name: "1"}}
	return nic.DefaultVF(pf, vf)
}
