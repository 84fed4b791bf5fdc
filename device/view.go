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

// view is the shard as those who ask the NIC see it, on the shard's thread, with the uplink and the
// thread. It implements controller.View.
type view struct {
	shard.View
	n *NIC
}

var _ controller.View = view{}

// asked is a shard that answers with its view. It implements controller.Shard.
type asked struct {
	s *shard.Shard
	n *NIC // whose uplink and thread it has
}

// Ask implements controller.Shard.
func (a asked) Ask(f func(v controller.View, now falcon.Time)) error {
	return a.s.Do(func(now falcon.Time) { f(view{a.s.View(), a.n}, now) })
}

// Uplink implements controller.View.
func (v view) Uplink() control.Uplink {
	u, t := &v.n.cfg.Uplink, v.n.thread
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

// Counters implements controller.View. The uplink belongs to the shard's thread.
func (v view) Counters() control.Counters {
	sum, p, t := v.View.Counters(), v.n.deps.Uplink.Stats(), v.n.thread
	counters.OfUplink.Add(sum, &p)
	countImpaired(sum, "rx", t.Impaired(thread.RX))
	countImpaired(sum, "tx", t.Impaired(thread.TX))
	sum["drop.uplink_error"] = t.Errors()
	return sum
}

// countRest adds the counters that are not a shard's.
func (n *NIC) countRest(v control.Counters) {
	c := counters.NIC{Warnings: uint64(len(n.warnings.List()))}
	if n.link != nil {
		l := n.link.Stats()
		counters.OfLinks.Add(v, &l)
	}
	if s := n.deps.Supervisor; s != nil {
		c.Starts, c.Stuck = uint64(s.Starts), uint64(s.Stuck)
		counters.OfWorker.Add(v, &c)
	}
	if n.deps.Capture != nil {
		c.CaptureDropped = n.deps.Capture.Drops()
		counters.OfCapture.Add(v, &c)
	}
	counters.OfNIC.Add(v, &c)
}
