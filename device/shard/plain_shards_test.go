package shard

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
)

// TestPlainShards checks with ports on one, two and three shards of a NIC that each reaches every
// other one, of its own NIC and of the peer, while both rotate their keys; each shard seals with
// keys of its own.
func TestPlainShards(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newPortWorldWith(t, 5, func(i int, c *config.Config) {
			for vf := 1; vf < 3; vf++ {
				devicetest.AddPort(c, vf, &config.Port{Name: fmt.Sprint("vp", vf+1)})
			}
		})
		const ports = 3
		for round := range 3 {
			for side := range 2 {
				if round > 0 {
					if err := v.cores[side].Keys.Rotate(v.now); err != nil {
						t.Fatal(err)
					}
				}
				for from := range ports {
					for to := range 2 * ports {
						other := to / ports
						if to%ports == from && other == side {
							continue
						}
						v.say(side, from, v.addrOf(side, from), v.addrOf(other, to%ports), 100+to)
						want := bytes.Clone(v.ports[side][0].Frame[14:])
						got := v.heard(other)
						if len(got) != 1 || !bytes.Equal(got[0][14:], want) || [6]byte(got[0][:6]) != v.portAt(other, to%ports).MAC {
							t.Fatalf("round %d, host %d port %d to host %d port %d: %d frames", round, side+1, from, other+1, to%ports, len(got))
						}
					}
				}
			}
			v.idle(2e9) // the old keys have ended
		}
		noKeyDrops(t, v)
		handed := uint64(0)
		for i := range v.nics {
			spis := map[uint32]int{}
			for _, s := range v.nics[i] {
				handed += s.plain.gw.Stats().HandedOver
				for _, k := range s.txSAs.List() {
					if spis[k.SPI]++; spis[k.SPI] > 1 || int(k.Use.Shard) != s.index {
						t.Errorf("shard %d seals with SPI %#x, %v", s.index, k.SPI, k.Use)
					}
				}
			}
		}
		if (handed > 0) != (perNIC > 1) {
			t.Errorf("%d frames were handed over", handed)
		}
	})
}

func (v *virtual) addrOf(side, n int) [4]byte { return v.portAt(side, n).Addresses[0].As4() }
