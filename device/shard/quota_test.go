package shard

import (
	"errors"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// The objects that a function can leave behind are bounded in every state, and never take the last
// of what others need.

// TestAttackConnectionIDs: VFs that connect and disconnect without pause leave resting connections
// behind, limited per peer NIC and per VF. Another VF connects as often as it likes.
func TestAttackConnectionIDs(t *testing.T) {
	for _, inside := range []bool{false, true} {
		for _, qps := range []uint32{0, 4000} { // 0: the default limits
			t.Run(fmt.Sprintf("inside=%v qp=%d", inside, qps), func(t *testing.T) {
				v := newVirtualWith(t, 41, sim.Impairment{Delay: 1000}, func(_ int, c *config.Config) {
					for i := range c.Functions[0].VFs {
						c.Functions[0].VFs[i].Limits.QP, c.Functions[0].VFs[i].Limits.AH = qps, qps
					}
				})
				honest, peer := drivers(v)
				s := v.shards[0]
				for _, vf := range []int{2, 3} {
					rude := newDriver(v, 0, vf)
					rude.setUp()
					to := peer.fn.GID()
					if inside {
						to = honest.fn.GID()
					}
					for range conn.MaxSlots {
						id, err := v.core(s).Manager.Connect(v.now, cm.ConnectRequest{
							Function: uint32(rude.fn.ID), Tenant: rude.fn.Tenant, QPN: rude.qpn, Service: 1, SGID: rude.fn.GID(), DGID: to,
						})
						if err != nil && !errors.Is(err, cm.ErrLimit) && !errors.Is(err, conn.ErrNoCID) {
							t.Fatal(err)
						}
						if err == nil {
							_ = v.core(s).Manager.Disconnect(v.now, uint32(rude.fn.ID), id)
						}
						if inside {
							v.core(s).Manager.Run(v.now)
							continue
						}
						for o := (cm.Output{}); v.core(s).Manager.Next(&o); { // no message arrives
						}
					}
					if n, quota := v.core(s).Manager.CIDs(uint32(rude.fn.ID)); n > quota || n > conn.MaxSlots*3/4 {
						t.Errorf("%s holds %d connection identifiers, %d are its quota", rude.fn.ID, n, quota)
					}
				}
				peer.must(abi.AdminOpCMListen, &abi.CMListen{Service: 9})
				for i := range 230 {
					st, _ := honest.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: honest.qpn, Service: 9, DGID: peer.fn.GID()})
					if st != abi.StatusOK {
						t.Fatalf("the honest function's connect %d: %s", i, st)
					}
					e := peer.event(abi.EventConnectRequest)
					peer.must(abi.AdminOpCMReject, &abi.CMReject{CMID: e.Number})
					honest.event(abi.EventRejected)
				}
				v.idle(10e9)
				if n := v.core(s).Manager.CIDsInUse(); n != 0 {
					t.Errorf("%d connection identifiers are never given back", n)
				}
			})
		}
	}
}
