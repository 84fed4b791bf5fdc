package iwarp_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/transport/conformance"
)

// TestConformance holds connections over iWARP to the contract of package transport, on streams that
// are cut as they were written and on others that are late, narrow and cut anywhere.
func TestConformance(t *testing.T) {
	for seed, s := range []shape{{}, {delay: 20e3, cut: 2000}, {delay: 300e3, cut: 70, size: 4000}, {delay: 50e3, cut: 9000, mss: 8960}} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			conformance.Run(t, func(t testing.TB, _ conformance.Options) *conformance.Pair {
				w := newWorld(t, uint64(seed))
				settings := [2]iwarp.Settings{usual(), usual()}
				settings[0].CRC, settings[1].CRC = seed > 0, false
				l := w.connect(0, s, settings)
				return &conformance.Pair{A: l.conns[0], B: l.conns[1], Step: func(now transport.Time) transport.Time { return w.step(now) }}
			})
		})
	}
}
