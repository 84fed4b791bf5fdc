package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

// TestPathIsLong: a round trip above the delay target limits a connection to one packet at a time.
// EvLongPath is sent once.
func TestPathIsLong(t *testing.T) {
	for _, c := range []struct {
		delay falcon.Time
		told  int
	}{{1100 * us, 1}, {100 * us, 0}} {
		p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, imp *sim.Impairment) {
			cfg[0].Profile, cfg[1].Profile = falcon.Software(), falcon.Software()
			imp.Delay = c.delay
		})
		p.Tracing = false
		for i := range 700 {
			p.push(p.a, 100, uint64(i+1))
			p.run(3 * ms)
		}
		if n := len(p.events(0, falcon.EvLongPath)); n != c.told {
			t.Errorf("one-way delay of %d ns: told %d times, want %d", c.delay, n, c.told)
		}
		if i := p.a.Info(); i.LongPath != (c.told > 0) || i.DelayTarget != 999948 {
			t.Errorf("one-way delay of %d ns: %+v", c.delay, i)
		}
	}
}
