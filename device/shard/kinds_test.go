package shard

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEveryKindEverywhere checks that for every kind of objects the operator can set a quota and
// sees the numbers, under the kind's name.
func TestEveryKindEverywhere(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.setUp()
	s := v.shards[0]
	for k := range abi.NumObjects {
		most := uint32(5 + k)
		v.mustOperate(0, "pf0.vf1", "", "max_"+k.Info().Key, fmt.Sprint(most))
		raw, err := json.Marshal((View{s: s}).Describe(d.fn.ID))
		if err != nil {
			t.Fatal(err)
		}
		var shown map[string]any
		if err := json.Unmarshal(raw, &shown); err != nil {
			t.Fatal(err)
		}
		n := float64(d.fn.Verbs().Counts()[k])
		if shown["max_"+k.Info().Key] != float64(most) || shown[k.Info().Key+"s"] != n {
			t.Errorf("%s: shown as %v of %v, want %v of %d", k, shown[k.Info().Key+"s"], shown["max_"+k.Info().Key], n, most)
		}
	}
}
