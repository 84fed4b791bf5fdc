package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// TestShareOf: an impaired uplink lets through the same, and queues the same, whatever number of
// shards it is cut up for; each shard has luck of its own, and all else as it is.
func TestShareOf(t *testing.T) {
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
