package iwarp_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/transport/conformance"
)

// TestConformance holds connections over iWARP to the contract of package transport, on streams that
// are cut as they were written and on others that are late, narrow and cut anywhere.
func TestConformance(t *testing.T) {
	for seed, s := range []iwarptest.Shape{{}, {Delay: 20e3, Cut: 2000}, {Delay: 300e3, Cut: 70, Size: 4000}, {Delay: 50e3, Cut: 9000, MSS: 8960}} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			conformance.Run(t, func(t testing.TB, _ conformance.Options) *conformance.Pair {
				w := iwarptest.New(t, uint64(seed))
				settings := [2]iwarp.Settings{iwarptest.Usual(), iwarptest.Usual()}
				settings[0].CRC, settings[1].CRC = seed > 0, false
				l := w.Connect(0, s, settings)
				return &conformance.Pair{A: l.Conns[0], B: l.Conns[1], Step: func(now transport.Time) transport.Time { return w.Step(now) }}
			})
		})
	}
}
