package device

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
)

// TestShardsShareTheRateAndQueueOfAnImpairment checks that an impaired uplink lets through and queues the same with any number of
// shards, and that each shard has a seed of its own and otherwise the same impairment.
func TestShardsShareTheRateAndQueueOfAnImpairment(t *testing.T) {
	whole := config.Impairment{Rate: 6_000_000, Queue: 12, Seed: 7, Loss: 0.25}
	for shards := 1; shards <= 4; shards++ {
		var rate config.Rate
		queue, seeds := 0, map[uint64]bool{}
		for i := range shards {
			part := shareOf(whole, i, shards)
			rate += part.Rate
			queue += part.Queue
			seeds[part.Seed] = true
			part.Rate, part.Queue, part.Seed = whole.Rate, whole.Queue, whole.Seed
			if part != whole {
				t.Errorf("shard %d of %d: %+v, want the rest as in %+v", i, shards, part, whole)
			}
		}
		if rate != whole.Rate || queue != whole.Queue || len(seeds) != shards {
			t.Errorf("%d shards: rate %d of %d, queue %d of %d, %d seeds", shards, rate, whole.Rate, queue, whole.Queue, len(seeds))
		}
	}
	few := shareOf(config.Impairment{Queue: 1}, 2, 3)
	if few.Queue != 1 || few.Rate != 0 {
		t.Errorf("%+v: a queue has at least one place, and no limit of the rate stays none", few)
	}
}

// TestAnyNumberOfShardsImpairsAnUplinkAlike tests NICs of one, two and three shards in virtual time, whose uplinks have a
// rate limit and lose packets. With any number of shards, the uplink lets through the same, the
// counts of its parts agree with what is seen outside, and a seed makes the same choices each time.
func TestAnyNumberOfShardsImpairsAnUplinkAlike(t *testing.T) {
	const (
		frame = 1000                 // bytes
		turns = 1000                 // of a millisecond each
		rate  = frame * 8 * 1000 / 2 // bit/s: a frame in two turns, of four that are offered
	)
	asked := config.NoImpairment()
	asked.Rate, asked.Queue, asked.Loss, asked.Seed = rate, 12, 0.1, 5
	type seen struct {
		tx, rx [3]uint64 // delivered, lost, overflowed
		order  []byte    // sent frames, by shard
	}
	run := func(shards int) (s seen) {
		net := fabric.New(devicetest.MTU)
		near, err := net.Port("near")
		must(t, err)
		far, err := net.Port("far")
		must(t, err)
		defer far.Close()
		cfg := devicetest.Config(t, 1, filepath.Join(t.TempDir(), "s"), [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		cfg.NIC.Shards, cfg.Peers, cfg.Uplink.Impair = shards, nil, config.Impair{RX: asked, TX: asked}
		now := int64(1e9)
		n, err := NewNIC(cfg, Deps{Uplink: near, Clock: func() int64 { return now }, Rand: devicetest.Seeded(1)})
		must(t, err)
		defer n.closeOpened(&Deps{})
		data := func(to, from byte) []byte { // with a protocol that nobody uses
			f := make([]byte, frame)
			copy(f, []byte{2, 0, 0, 0, 1, to, 2, 0, 0, 0, 1, from, 0x88, 0xb5})
			return f
		}
		bufs, got := [][]byte{make([]byte, 5000)}, make([]tap.Received, 1)
		for range turns {
			now += 1e6
			for range 2 {
				_, err := far.Write([][]byte{data(0, 0xf0)}, false)
				must(t, err)
			}
			for i, u := range n.units {
				for range 2 {
					copy(u.Queue().Slot(), data(0xf0, byte(i)))
					u.Queue().Commit(frame)
				}
				u.thread.Turn()
			}
			for k, _ := far.Read(bufs, got); k > 0; k, _ = far.Read(bufs, got) {
				if bufs[0][12] == 0x88 {
					s.order = append(s.order, bufs[0][11])
				}
			}
		}
		for _, u := range n.units {
			for d, to := range [thread.Directions]*[3]uint64{thread.RX: &s.rx, thread.TX: &s.tx} {
				c := u.thread.Impaired(d).Counts
				to[0], to[1], to[2] = to[0]+c.Delivered, to[1]+c.Lost, to[2]+c.Overflowed
			}
		}
		return s
	}
	for shards := 1; shards <= 3; shards++ {
		first, again := run(shards), run(shards)
		if !reflect.DeepEqual(first, again) {
			t.Errorf("%d shards: %v, then %v", shards, first, again)
		}
		for what, c := range map[string][3]uint64{"sent": first.tx, "received": first.rx} {
			if c[0] < 420 || c[0] > 480 || c[1] < 30 || c[1] > 80 || c[2] == 0 {
				t.Errorf("%d shards: %d %s, %d lost, %d had no place in the queue", shards, c[0], what, c[1], c[2])
			}
		}
		if len(first.order) != int(first.tx[0]) {
			t.Errorf("%d shards: %d let through, %d arrived", shards, first.tx[0], len(first.order))
		}
	}
}
