package shard

import (
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// connections implements the connections of a function for its driver's side.
type connections struct {
	*conn.Connections
	falcon *falconWire
	other  otherWire
}

// otherWire carries the RDMA of functions that Falcon does not carry.
type otherWire interface {
	// start connects a function that its driver enabled to the wire.
	start(o *conn.Owner, v *rdma.Function)
	// ported reports that a port of such a function was added, perhaps in place of another.
	ported(o *conn.Owner, v *rdma.Function)
	// stop ends the service of a function whose driver has gone.
	stop(o *conn.Owner)
}

// ported tells the other wire that a function's port was added, if the function has a driver.
func (fs *functionSet) ported(id pfvf.ID) {
	if f := fs.byID[id]; f != nil && f.Verbs() != nil {
		fs.other.ported(&f.conns.Owner, f.Verbs())
	}
}

var _ guest.Connections = connections{}

// Commands implements guest.Connections.
func (c connections) Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler {
	return c.Connections.Commands(now, later)
}

// Start implements guest.Connections.
func (c connections) Start(v *rdma.Function, mem *queues.Memory) {
	v.UseTrace(c.Trace)
	c.other.start(&c.Owner, v)
	c.Connections.Start(v, mem)
}

// Stopped implements guest.Connections.
func (c connections) Stopped(now falcon.Time) {
	c.other.stop(&c.Owner)
	c.Close(now)
	c.falcon.table.EndPartingsOf(now, &c.Owner)
	c.falcon.drain(now)
	c.Forget()
}
