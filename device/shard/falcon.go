package shard

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// falconWire is a shard's Falcon engine with its connections, and RDMA over Falcon on top.
type falconWire struct {
	engine *falcon.Engine
	rof    *rof.Engine
	table  *conn.Table
	conns  *conn.Connector
	event  falcon.Event
}

// newFalcon creates the Falcon engine, the table of its connections, and what connects it with the
// functions and the connection manager. Queue pairs whose peer is not reached over Falcon are
// connected by others.
func newFalcon(shard int, cfg *config.Config, core Core, on *rdma.Engine, others *networks, keys *security.TxSAs, t *tape.Tape, log *loglimit.Log) *falconWire {
	w := &falconWire{rof: rdma.Wire[*rof.Engine](on)}
	w.engine = falcon.NewEngine(falcon.Config{Profile: cfg.Falcon.Build(), Credits: core.Credits().Parent(), MaxConns: conn.MaxSlots}, w.rof)
	w.rof.UseFalcon(w.engine)
	w.table = conn.NewTable(conn.TableConfig{
		Shard: shard, Slots: conn.MaxSlots, Transport: w.engine, Loopbacks: rdma.Wire[*local.Engine](on), Keys: keyStore{keys},
		Credits: connectionCredits(cfg), Log: log.Line,
	})
	w.conns = conn.NewConnector(conn.ConnectorConfig{
		MTU: cfg.RDMA.MTU, Table: w.table, Manager: core, RDMA: w.rof, Elsewhere: others.connect, Tape: t, Log: log.Line,
	})
	return w
}

// passEvents passes Falcon's events to the RDMA engine.
func (w *falconWire) passEvents(now falcon.Time) {
	for w.engine.Next(&w.event) {
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
	if now >= w.engine.Deadline() {
		w.engine.Advance(now)
		w.passEvents(now)
	}
	w.conns.Advance(now)
}

// deadline returns the next time at which a timer is due.
func (w *falconWire) deadline() falcon.Time { return min(w.engine.Deadline(), w.conns.Deadline()) }

// endDrains disconnects connections that their driver has disconnected and that are drained.
func (w *falconWire) endDrains(now falcon.Time) {
	if w.table.Draining() {
		w.passEvents(now) // the last acknowledgement may just have left
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

// connections implements the connections of a function for its driver's side.
type connections struct {
	*conn.Connections
	f *member
}

var _ guest.Connections = connections{}

// Commands implements guest.Connections.
func (c connections) Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler {
	if p := c.streams(); p != nil {
		return streamCommands{p: p, now: now, mem: c.f.mem}
	}
	return c.Connections.Commands(now, later)
}

// streams returns the function's port, if its connections are streams; else nil.
func (c connections) streams() *streamPort {
	if v := c.f.Verbs(); v != nil {
		p, _ := v.Port().(*streamPort)
		return p
	}
	return nil
}

// EndQP implements guest.Connections.
func (c connections) EndQP(now falcon.Time, qpn uint32) {
	if p := c.streams(); p != nil {
		p.endQP(now, qpn)
	}
	c.Connections.EndQP(now, qpn)
}

// Start implements guest.Connections.
func (c connections) Start(v *rdma.Function, mem *queues.Memory) {
	v.UseTrace(c.Trace)
	c.f.mem = mem
	c.f.fs.networks.start(&c.Owner, v, c.f, c.f.wireName())
	c.Connections.Start(v, mem)
}

// Stopped implements guest.Connections.
func (c connections) Stopped(now falcon.Time) {
	c.f.fs.networks.stop(&c.Owner)
	c.Close(now)
	c.f.fs.falcon.table.EndPartingsOf(now, &c.Owner)
	c.f.fs.falcon.passEvents(now)
	c.Forget()
}

// keyStore gives connections to other NICs their keys.
type keyStore struct{ tx *security.TxSAs }

// Protect implements conn.KeyStore.
func (x keyStore) Protect(p *cm.Params, issued conn.Receiving) (conn.Keys, error) {
	tx, err := x.tx.Give(security.Use{Peer: p.Peer, Shard: p.Shard, Tenant: p.Tenant}, cm.SA{Version: p.TxVersion, SPI: p.TxSPI, Key: p.TxKey})
	if err != nil {
		return nil, fmt.Errorf("transmit key: %w", err)
	}
	r := issued.(*security.Receive)
	k := security.NewSession(*r, tx, netip.AddrFrom16(p.LocalGID).Unmap().Is6())
	*r = security.Receive{} // the session releases it
	return k, nil
}

func sessionOf(c *conn.Slot) *security.Session { return c.Keys.(*security.Session) }
