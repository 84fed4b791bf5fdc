package shard

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestChangeAllOrNothing checks that a change that peers cannot be told of is refused completely,
// and that it does not cause later refusals.
func TestChangeAllOrNothing(t *testing.T) {
	address := func(vf int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(vf >> 8), byte(vf)}) }
	const listed = cm.MaxEndpoints - 3 - 1 // VFs 1 to 3 share the tenant, and one is to come
	v := newVirtualWith(t, 71, wire100us, func(i int, c *config.Config) {
		c.Functions[0].VFCount = pfvf.MaxVF
		for vf := 5; i == 0 && vf < 5+listed; vf++ {
			f, on := config.DefaultVF(1, 0, uint16(vf)), true
			f.Tenant, f.Address, f.Enabled = 7, address(vf), &on
			c.Functions[0].VFs = append(c.Functions[0].VFs, config.VF{VF: uint16(vf), Function: f})
		}
	})
	enable := func(vf int) error {
		id, _ := pfvf.NewID(1, 0, uint32(vf))
		return v.change(0, id, func(c *config.Function) error {
			on := true
			c.Tenant, c.Address, c.Enabled = 7, address(vf), &on
			return nil
		})
	}
	if err := enable(3000); err != nil {
		t.Fatal(err)
	}
	before := len(v.functions(0))
	err := enable(3001)
	var no *functions.Refusal
	if !errors.As(err, &no) || no.Status != abi.StatusNoResources || !strings.Contains(err.Error(), "2049 functions") {
		t.Fatalf("one more than can be told: %v", err)
	}
	id, _ := pfvf.NewID(1, 0, 3001)
	home := v.nics[0][v.shards[0].cfg.Homes()(0, 3001)].funcs
	if home.byID[id] != nil || len(v.functions(0)) != before || *home.settings(id).Enabled {
		t.Error("it is there all the same")
	}
	first, _ := pfvf.NewID(1, 0, 1)
	if err := v.change(0, first, func(c *config.Function) error { c.Weight = 7; return nil }); err != nil {
		t.Errorf("another function's change: %v", err)
	}
	last, _ := pfvf.NewID(1, 0, 4) // of a tenant that is not shared
	move := func(c *config.Function) error { c.Tenant, c.Address = 7, address(4); return nil }
	f := v.function(0, 4)
	if err := v.change(0, last, move); err == nil || f.Tenant != 8 || f.cfg.Tenant != 8 {
		t.Errorf("moved to the tenant that is full: %v, it is in %d", err, f.Tenant)
	}
	v.idle(5 * cmDelay)
	if n := v.cores[1].Manager.Peers()[0].Offers; n != cm.MaxEndpoints {
		t.Errorf("the peer knows of %d functions, want %d", n, cm.MaxEndpoints)
	}
}
