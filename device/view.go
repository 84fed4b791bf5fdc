package device

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
)

// viewer gives access to a unit: to its shard, its part of the uplink and its thread. It implements
// controller.Viewer.
type viewer struct {
	u      *unit
	uplink *config.Uplink // the NIC's
}

// Ask implements controller.Viewer.
func (a viewer) Ask(f func(v controller.View, now falcon.Time)) error {
	return a.u.Do(func(now falcon.Time) {
		of := a.u.View()
		f(controller.View{
			Functions: of.Functions, Objects: of.Objects, Faults: of.Faults, Captures: of.Captures, Traces: of.Traces, Peers: of.Peers,
			Uplink: uplinkView(a), Counters: a.u.counters,
		}, now)
	})
}

// uplinkView implements controller.UplinkView.
type uplinkView viewer

// Describe implements controller.UplinkView.
func (v uplinkView) Describe() control.Uplink {
	u, mac := v.uplink, ""
	if !u.MAC.IsZero() {
		mac = u.MAC.String()
	}
	return control.Uplink{
		Name: v.u.uplink.Name(), MAC: mac, Addr: u.Described(), MTU: u.MTU,
		RX: v.u.describeDirection(thread.RX), TX: v.u.describeDirection(thread.TX),
	}
}

// Impair implements controller.UplinkView.
func (v uplinkView) Impair(direction string, change func(config.Impairment) (config.Impairment, error)) (err error) {
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
		v.u.thread.Impair(i, v.u.imposed(i, v.u.Index()))
	}
	return nil
}

func (u *unit) describeDirection(direction int) control.Direction {
	i := u.thread.Impaired(direction)
	return control.Direction{
		Impairment: controller.DescribeImpairment(u.impair[direction]),
		Counts: control.Impaired{
			Packets: i.Counts.Sent, Delivered: i.Counts.Delivered, Lost: i.Counts.Lost, Duplicated: i.Counts.Duplicated, Reordered: i.Counts.Reordered,
			Corrupted: i.Counts.Corrupted, Marked: i.Marked, Overflowed: i.Counts.Overflowed,
		},
	}
}

// counters returns the counters of the shard, its part of the uplink, and its thread.
func (u *unit) counters() control.Counters {
	sum, p := u.Counters(), u.uplink.Stats()
	counters.OfUplink.Add(sum, &p)
	u.countImpaired(sum, "rx", thread.RX)
	u.countImpaired(sum, "tx", thread.TX)
	sum["drop.uplink_error"] = u.thread.Errors()
	return sum
}

// countImpaired adds the counters of a direction.
func (u *unit) countImpaired(to control.Counters, name string, direction int) {
	c := u.describeDirection(direction).Counts
	for what, n := range map[string]uint64{
		"packets": c.Packets, "delivered": c.Delivered, "lost": c.Lost, "duplicated": c.Duplicated, "reordered": c.Reordered,
		"corrupted": c.Corrupted, "marked": c.Marked, "overflowed": c.Overflowed,
	} {
		to["impair."+name+"_"+what] = n
	}
}
