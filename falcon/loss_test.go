package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestLossIsToldAtOnce: a packet that makes others count as lost, because they are missing far
// enough below it, is acknowledged at once, in either window. Smaller reordering is not
// acknowledged at once, and no loss is reported twice.
func TestLossIsToldAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		distance uint32
		arrive   []uint32 // offsets of PSNs
		told     []uint32 // those that are acknowledged at once
	}{
		"in order":              {3, []uint32{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		"overtaken by two":      {3, []uint32{1, 2, 0, 4, 5, 3}, nil},
		"one lost":              {3, []uint32{0, 2, 3, 4, 5, 6, 7, 8}, []uint32{4}},
		"the first lost":        {3, []uint32{1, 2, 3, 4}, []uint32{3}},
		"two apart":             {3, []uint32{0, 2, 4, 5, 6, 7}, []uint32{4, 6}},
		"a burst":               {3, []uint32{0, 6, 7, 8, 9}, []uint32{6, 7, 8}},
		"and what would tell":   {3, []uint32{0, 2, 3, 5, 6, 7, 8}, []uint32{5, 7}},
		"a late one tells none": {3, []uint32{0, 5, 3, 4}, []uint32{5}},
		"another distance":      {5, []uint32{0, 2, 3, 4, 5, 6, 7}, []uint32{6}},
		"the least distance":    {0, []uint32{0, 2, 3}, []uint32{2}},
		"across halves":         {60, []uint32{0, 2, 61, 62}, []uint32{61}},
	} {
		for _, pull := range []bool{false, true} {
			p := ackProfile(100, ms)
			p.OOODistance, p.RACK = c.distance, false
			s := newSingle(t, p, func(c *falcon.ConnConfig) { c.Ordered = false })
			s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
			cfg := s.c.Config()
			var told []uint32
			for _, n := range c.arrive {
				if pull {
					s.want(s.pullRequest(cfg.RxReqPSN+n, cfg.RxRSN+n, false), wire.DropNone)
				} else {
					s.want(s.pushData(cfg.RxDataPSN+n, cfg.RxRSN+n, false), wire.DropNone)
				}
				for _, sent := range s.transmit() {
					a := ack(t, sent.Packet)
					at := cfg.RxDataPSN + n - a.DataBase
					got := a.DataRx
					if pull {
						at, got = cfg.RxReqPSN+n-a.ReqBase, wire.Bitmap128{Lo: a.Req}
					}
					if told = append(told, n); sent.Type != wire.TypeEACK || got.Lo>>at&1 != 1 && got.Hi>>(at-64)&1 != 1 {
						t.Errorf("%s, pull %v: %v does not show packet %d", name, pull, a, n)
					}
				}
			}
			equal(t, name, told, c.told)
		}
	}
}
