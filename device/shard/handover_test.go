package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/thread"
)

// TestHandedFlood checks that a flood of handed-over frames takes no more of another shard's Step
// than its own uplink does, delays no third shard, and is processed completely.
func TestHandedFlood(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.NIC.Shards = 3
	_, shards := newNIC(t, cfg, 1)
	to, frame := shards[0], make([]byte, 64) // for no station: counted and dropped
	give := func(from, n int, kind handover.Kind) {
		for range n {
			b := shards[from].others.Put(0, &handover.Header{Kind: kind}, len(frame))
			if b == nil {
				t.Fatal("not taken")
			}
			copy(b, frame)
			shards[from].others.Commit()
		}
	}
	seen := func() (n uint64) {
		for _, v := range to.underlay.Stats() {
			n += v
		}
		return n
	}
	const flood, few, own = handover.FlowFrames, 10, 5
	give(1, flood, handover.Uplink)
	give(2, few, handover.Plain) // for no port
	var out thread.Output
	in := thread.Input{Frames: [][]byte{frame, frame, frame, frame, frame}}
	now, steps := int64(1e9), 0
	for out.More = true; out.More; steps++ {
		now++
		before := seen()
		to.Step(now, &in, &out)
		out.Do()
		if n := seen() - before; n < own || n > own+handedQuantum {
			t.Fatalf("%d frames in a Step, %d of its own uplink", n, own)
		}
		if n := to.plain.gw.Stats().Reasons[gateway.DropNoPort]; steps == 1 && n != few {
			t.Errorf("%d frames of the third shard are taken beside the flood, want %d", n, few)
		}
		if to.others.waiting() && !out.More {
			t.Fatal("frames are left lying")
		}
	}
	if want := (flood + few + handedQuantum - 1) / handedQuantum; steps != want {
		t.Errorf("%d Steps, want %d", steps, want)
	}
}
