package shard

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// falconWire is a shard's Falcon engine with its connections, and the RDMA engine on top.
type falconWire struct {
	falcon *falcon.Engine
	rof    *rof.Engine
	table  *conn.Table
	conns  *conn.Connector
	event  falcon.Event
}

// drain passes Falcon's events to the RDMA engine.
func (w *falconWire) drain(now falcon.Time) {
	for w.falcon.Next(&w.event) {
		ev := &w.event
		w.rof.HandleEvent(now, ev)
		switch ev.Kind {
		case falcon.EvClosed, falcon.EvDrained, falcon.EvLongPath:
			w.conns.HandleEvent(now, ev)
		}
	}
	w.conns.Ended()
	w.conns.ConnectLinks()
}

// advance runs the timers that are due.
func (w *falconWire) advance(now falcon.Time) {
	if now >= w.falcon.Deadline() {
		w.falcon.Advance(now)
		w.drain(now)
	}
	w.conns.Advance(now)
}

// deadline returns the next time at which a timer is due.
func (w *falconWire) deadline() falcon.Time { return min(w.falcon.Deadline(), w.conns.Deadline()) }

// endDrains disconnects connections that their driver has disconnected and that are drained.
func (w *falconWire) endDrains(now falcon.Time) {
	if w.table.Draining() {
		w.drain(now) // the last acknowledgement may just have left
		w.table.EndDrains(now)
		w.conns.Ended()
	}
}

// connectionCredits returns the most that one connection may hold by the configuration (see
// conn.NewCredits).
func connectionCredits(cfg *config.Config) credit.Cost {
	c := cfg.Credits.Connection.Cost()
	for i, v := range c {
		if v == 0 {
			c[i] = credit.Unlimited
		}
	}
	return c
}
