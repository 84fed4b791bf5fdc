package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
)

// uplink describes the uplink. It runs on the shard's thread.
func (n *NIC) uplink() control.Uplink {
	u := &n.cfg.Uplink
	return control.Uplink{
		Name: n.deps.Uplink.Name(), MAC: u.MAC.String(), Addr: u.Address.String(), MTU: u.MTU,
		RX: describeDirection(n.thread.Impaired(thread.RX)), TX: describeDirection(n.thread.Impaired(thread.TX)),
	}
}

// InjectLink changes what the uplink does to packets. It implements
// control.Provider.
func (n *NIC) InjectLink(_ context.Context, c control.LinkChange) (v control.Uplink, err error) {
	name := n.deps.Uplink.Name()
	if c.Uplink != "" && c.Uplink != name {
		return v, control.BadRequest{Err: fmt.Errorf("uplink %q: this NIC has none of that name; name %s", c.Uplink, name)}
	}
	var change [thread.Directions]bool
	switch c.Direction {
	case "rx":
		change[thread.RX] = true
	case "tx":
		change[thread.TX] = true
	case "":
		change = [thread.Directions]bool{true, true}
	default:
		return v, control.BadRequest{Err: fmt.Errorf("direction %q: write rx for what arrives, tx for what leaves, or nothing for both", c.Direction)}
	}
	stopped := n.shard.do(func(falcon.Time) {
		var next [thread.Directions]config.Impairment
		for i := range next {
			next[i] = n.thread.Impaired(i).Asked
			if !change[i] {
				continue
			}
			if next[i], err = changed(next[i], c); err != nil {
				return
			}
		}
		for i := range next {
			n.thread.Impair(i, next[i])
		}
		v = n.uplink()
	})
	return v, errors.Join(stopped, err)
}

// changed is what a direction is asked to do after a change.
func changed(asked config.Impairment, c control.LinkChange) (config.Impairment, error) {
	if c.Clear {
		asked = config.NoImpairment()
	}
	i := describeImpairment(asked)
	if len(c.Set) > 0 {
		dec := json.NewDecoder(bytes.NewReader(c.Set))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&i); err != nil {
			return asked, control.BadRequest{Err: fmt.Errorf("set: %w; give fields of an impairment as GET /v1/nic shows them", err)}
		}
	}
	asked = config.Impairment{
		Loss: config.Share(i.Loss), Duplicate: config.Share(i.Duplicate), Reorder: config.Share(i.Reorder), Corrupt: config.Share(i.Corrupt), Mark: config.Share(i.Mark),
		Delay: time.Duration(i.DelayNS), Jitter: time.Duration(i.JitterNS), ReorderDelay: time.Duration(i.ReorderDelayNS),
		Rate: config.Rate(i.Rate), Queue: i.Queue, Down: i.Down, Seed: i.Seed,
	}
	if err := asked.Check(); err != nil {
		return asked, control.BadRequest{Err: err}
	}
	return asked, nil
}

func describeImpairment(c config.Impairment) control.Impairment {
	return control.Impairment{
		Loss: float64(c.Loss), Duplicate: float64(c.Duplicate), Reorder: float64(c.Reorder), Corrupt: float64(c.Corrupt), Mark: float64(c.Mark),
		DelayNS: int64(c.Delay), JitterNS: int64(c.Jitter), ReorderDelayNS: int64(c.ReorderDelay), Rate: int64(c.Rate), Queue: c.Queue, Down: c.Down, Seed: c.Seed,
	}
}

func describeDirection(i thread.Impaired) control.Direction {
	return control.Direction{
		Impairment: describeImpairment(i.Asked),
		Counts: control.Impaired{
			Packets: i.Counts.Sent, Delivered: i.Counts.Delivered, Lost: i.Counts.Lost, Duplicated: i.Counts.Duplicated, Reordered: i.Counts.Reordered,
			Corrupted: i.Counts.Corrupted, Marked: i.Marked, Overflowed: i.Counts.Overflowed,
		},
	}
}

// countImpaired adds the counters of a direction.
func countImpaired(v control.Counters, direction string, i thread.Impaired) {
	c := describeDirection(i).Counts
	for name, n := range map[string]uint64{
		"packets": c.Packets, "delivered": c.Delivered, "lost": c.Lost, "duplicated": c.Duplicated, "reordered": c.Reordered,
		"corrupted": c.Corrupted, "marked": c.Marked, "overflowed": c.Overflowed,
	} {
		v["impair."+direction+"_"+name] = n
	}
}
