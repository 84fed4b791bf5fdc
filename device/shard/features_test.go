package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestFeaturesAreAgreedOn checks that commands of a feature that the driver did not agree on are
// refused, as breaking DRV-103; with the feature the same commands are carried out, or refused for
// other errors.
func TestFeaturesAreAgreedOn(t *testing.T) {
	const extended, datagrams = abi.FeatureExtendedVerbs, abi.FeatureDatagrams
	for _, c := range []struct {
		name   string
		need   uint64
		op     abi.AdminOp
		params interface{ Marshal([]byte) }
	}{
		{"QP of type UD", datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeUD}},
		{"QP of type GSI", datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeGSI}},
		{"QP of type XRCSend", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeXRCSend}},
		{"QP of type XRCRecv", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeXRCRecv}},
		{"weakly ordered QP", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeRC, Ordering: abi.OrderingWeak}},
		{"QP that completes in error", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeRC, ErrorMode: abi.ErrorModeCompleteInError}},
		{"weakly ordered datagrams", extended | datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeUD, Ordering: abi.OrderingWeak}},
		{"address handle", datagrams, abi.AdminOpCreateAH, &abi.CreateAH{}},
		{"DestroyAH", datagrams, abi.AdminOpDestroyAH, &abi.DestroyAH{}},
		{"SRQ", extended, abi.AdminOpCreateSRQ, &abi.CreateSRQ{}},
		{"ModifySRQ", extended, abi.AdminOpModifySRQ, &abi.ModifySRQ{}},
		{"QuerySRQ", extended, abi.AdminOpQuerySRQ, &abi.QuerySRQ{}},
		{"DestroySRQ", extended, abi.AdminOpDestroySRQ, &abi.DestroySRQ{}},
		{"CloseXRCD", extended, abi.AdminOpCloseXRCD, &abi.CloseXRCD{}},
		{"memory window", extended, abi.AdminOpAllocMW, &abi.AllocMW{}},
		{"DeallocMW", extended, abi.AdminOpDeallocMW, &abi.DeallocMW{}},
		{"ReregMR", extended, abi.AdminOpReregMR, &abi.ReregMR{}},
		{"ResizeCQ", extended, abi.AdminOpResizeCQ, &abi.ResizeCQ{}},
		{"ModifyCQ", extended, abi.AdminOpModifyCQ, &abi.ModifyCQ{}},
	} {
		v := newVirtual(t, 1, wire100us)
		d := newDriver(v, 0, 1)
		d.setUp()
		for bit := uint64(1); bit != 0; bit <<= 1 {
			if c.need&bit == 0 {
				continue
			}
			d.b.Features = ^bit
			before := len(d.fn.Violations().All())
			if st, _ := d.command(c.op, c.params); st != abi.StatusUnsupported {
				t.Errorf("%s without feature %#x: %s", c.name, bit, st)
			}
			if list := d.fn.Violations().All(); before == 0 && (len(list) != 1 || list[0].Clause != 103) {
				t.Errorf("%s without feature %#x: violations %+v", c.name, bit, list)
			}
		}
		d.b.Features = c.need
		if st, _ := d.command(c.op, c.params); st == abi.StatusUnsupported {
			t.Errorf("%s with its feature: %s", c.name, st)
		}
	}
}
