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

// connections are a function's for its driver's side.
type connections struct {
	*conn.Function
	falcon *falconWire
	other  otherWire
}

// otherWire carries RDMA of functions where Falcon does not.
type otherWire interface {
	// start gives a function that its driver enabled its place on the wire.
	start(o *conn.Owner, v *rdma.Function)
	// ported is told that a port of such a function came, or came back as another one.
	ported(o *conn.Owner, v *rdma.Function)
	// stop ends that: the driver has gone.
	stop(o *conn.Owner)
}

// ported tells the other wire that a function's port came, if the function has a driver.
func (fs *functionSet) ported(id pfvf.ID) {
	if f := fs.byID[id]; f != nil && f.Verbs() != nil {
		fs.other.ported(&f.conns.Owner, f.Verbs())
	}
}

var _ guest.Connections = connections{}

// Commands implements guest.Connections.
func (c connections) Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler {
	return c.Function.Commands(now, later)
}

// Start implements guest.Connections.
func (c connections) Start(v *rdma.Function, mem *queues.Memory) {
	v.UseTrace(c.Trace)
	c.other.start(&c.Owner, v)
	c.Function.Start(v, mem)
}

// Stopped implements guest.Connections.
func (c connections) Stopped(now falcon.Time) {
	c.other.stop(&c.Owner)
	c.Close(now)
	c.falcon.table.EndPartingsOf(now, &c.Owner)
	c.falcon.drain(now)
	c.Forget()
}
