package device

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
)

// view shows a shard to the NIC's API, on the shard's thread, together with its uplink and thread.
// It implements controller.View.
type view struct {
	shard.View
	asked
}

var _ controller.View = view{}

// asked gives access to a shard by its view. It implements controller.Viewer.
type asked struct {
	u      *unit
	uplink *config.Uplink // the NIC's
}

// Ask implements controller.Viewer.
func (a asked) Ask(f func(v controller.View, now falcon.Time)) error {
	return a.u.Do(func(now falcon.Time) { f(view{a.u.View(), a}, now) })
}

// Uplink implements controller.View.
func (v view) Uplink() control.Uplink {
	u, mac := v.uplink, ""
	if !u.MAC.IsZero() {
		mac = u.MAC.String()
	}
	return control.Uplink{
		Name: v.u.uplink.Name(), MAC: mac, Addr: u.Described(), MTU: u.MTU,
		RX: v.describeDirection(thread.RX), TX: v.describeDirection(thread.TX),
	}
}

// InjectLink implements controller.View.
func (v view) InjectLink(direction string, change func(config.Impairment) (config.Impairment, error)) (err error) {
	next := v.u.impair
	for i, name := range [thread.Directions]string{thread.RX: "rx", thread.TX: "tx"} {
		if direction != "" && direction != name {
			continue
		}
		if next[i], err = change(next[i]); err != nil {
			return err
		}
	}
	v.u.impair = next
	for i := range next {
		v.u.thread.Impair(i, v.u.imposed(i, v.Index()))
	}
	return nil
}

func (v view) describeDirection(direction int) control.Direction {
	i := v.u.thread.Impaired(direction)
	return control.Direction{
		Impairment: controller.DescribeImpairment(v.u.impair[direction]),
		Counts: control.Impaired{
			Packets: i.Counts.Sent, Delivered: i.Counts.Delivered, Lost: i.Counts.Lost, Duplicated: i.Counts.Duplicated, Reordered: i.Counts.Reordered,
			Corrupted: i.Counts.Corrupted, Marked: i.Marked, Overflowed: i.Counts.Overflowed,
		},
	}
}

// countImpaired adds the counters of a direction.
func (v view) countImpaired(to control.Counters, name string, direction int) {
	c := v.describeDirection(direction).Counts
	for what, n := range map[string]uint64{
		"packets": c.Packets, "delivered": c.Delivered, "lost": c.Lost, "duplicated": c.Duplicated, "reordered": c.Reordered,
		"corrupted": c.Corrupted, "marked": c.Marked, "overflowed": c.Overflowed,
	} {
		to["impair."+name+"_"+what] = n
	}
}

// Counters implements controller.View. The uplink's counters belong to the shard's thread.
func (v view) Counters() control.Counters {
	sum, p, t := v.View.Counters(), v.u.uplink.Stats(), v.u.thread
	counters.OfUplink.Add(sum, &p)
	v.countImpaired(sum, "rx", thread.RX)
	v.countImpaired(sum, "tx", thread.TX)
	sum["drop.uplink_error"] = t.Errors()
	return sum
}
