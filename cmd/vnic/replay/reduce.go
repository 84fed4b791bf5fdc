package replay

import (
	"context"
	"fmt"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/shard"
)

// reduced is what --reduce prints with --json.
type reduced struct {
	File      string `json:"file"`
	Shows     string `json:"shows"`
	Shard     int    `json:"shard"`
	Steps     int    `json:"steps"`
	WasSteps  int    `json:"was_steps"` // up to where it is shown
	Events    int    `json:"events"`
	WasEvents int    `json:"was_events"`
	Bytes     int64  `json:"bytes"`
}

// reduceTo writes a smaller recording that still shows what --break names, of the same function.
func (o *options) reduceTo(ctx context.Context, r *record.Recording, cfg *config.Config, shards []int) error {
	for _, i := range shards {
		x := &run{o: o, r: r, index: i, tape: r.Tape(i)}
		shows, err := x.find(ctx, cfg)
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		if shows == whyEnd {
			continue
		}
		var of *shard.Player
		var at stop
		is, err := shard.Reduce(i, cfg, r.Tape(i), func(p *shard.Player) bool {
			if p != of { // another try
				of, at = p, stop{what: o.stop.what}
			}
			return ctx.Err() != nil || at.changed(p.Shard) && look(p.Shard, o.stop.what)[shows] > 0
		})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		tapes := make([][][]byte, r.Shards)
		tapes[i] = is.Chunks
		for k := range tapes {
			if k != i {
				if tapes[k], err = shard.Unused(k, cfg, r.Tape(k)); err != nil {
					return fmt.Errorf("shard %d: %w", k, err)
				}
			}
		}
		h := r.Header
		h.Version = device.Version
		size, err := record.Save(o.reduce, h, tapes)
		if err != nil {
			return err
		}
		if o.json {
			return cli.PrintJSON(o.out, reduced{o.reduce, shows, i, is.Steps, is.WasSteps, is.Events, is.WasEvents, size})
		}
		o.say("shard %d: %s\n%s has %s, %d bytes, and shows it\n", i, shows, o.reduce, is, size)
		return nil
	}
	return fmt.Errorf("the recording does not show it: --break %s", o.breakAt)
}

// find returns the first thing that --break names.
func (x *run) find(ctx context.Context, cfg *config.Config) (shows string, err error) {
	if x.player, err = shard.NewPlayer(x.index, cfg, x.tape, x.log()); err != nil {
		return "", err
	}
	defer x.player.Shard.Close()
	return x.on(ctx, &stop{what: x.o.stop.what})
}
