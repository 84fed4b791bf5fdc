package shard

import (
	"encoding/hex"
	"fmt"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Violations implements controller.View.
func (view View) Violations(now falcon.Time, of pfvf.ID) (list []control.Violation) {
	for _, v := range view.s.funcs.byID[of].Violations().All() {
		is := control.Violation{
			Function: of.String(), Ring: v.Ring.String(), Queue: v.Queue, Index: v.Index,
			Bytes: hex.EncodeToString(v.Bytes[:v.Length]), Count: v.Count, AgeMS: (now - v.At) / 1e6,
		}
		if v.Clause != 0 {
			c := abi.Clause(v.Clause)
			is.Clause, is.What = c.String(), c.Doc()
		} else {
			is.What = fmt.Sprintf("WQE %d: %s (%s)", v.Index, v.Why, v.Status)
		}
		list = append(list, is)
	}
	return list
}

// ClearViolations implements controller.View.
func (view View) ClearViolations(of pfvf.ID) { view.s.funcs.byID[of].Violations().Clear() }
