package device

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/thread"
)

// Uplink implements controller.View.
func (v view) Uplink() control.Uplink {
	u, t := &v.s.cfg.Uplink, v.n.thread
	return control.Uplink{
		Name: v.n.deps.Uplink.Name(), MAC: u.MAC.String(), Addr: u.Address.String(), MTU: u.MTU,
		RX: describeDirection(t.Impaired(thread.RX)), TX: describeDirection(t.Impaired(thread.TX)),
	}
}

// InjectLink implements controller.View.
func (v view) InjectLink(direction string, change func(config.Impairment) (config.Impairment, error)) (err error) {
	t := v.n.thread
	var next [thread.Directions]config.Impairment
	for i, name := range [thread.Directions]string{thread.RX: "rx", thread.TX: "tx"} {
		next[i] = t.Impaired(i).Asked
		if direction != "" && direction != name {
			continue
		}
		if next[i], err = change(next[i]); err != nil {
			return err
		}
	}
	for i := range next {
		t.Impair(i, next[i])
	}
	return nil
}

func describeDirection(i thread.Impaired) control.Direction {
	return control.Direction{
		Impairment: controller.DescribeImpairment(i.Asked),
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
