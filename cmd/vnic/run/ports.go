package run

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
)

// guestPorts opens ports whose rings are in guest memory (ports.Guests).
type guestPorts struct {
	// in returns the acceptor of a port's front ends, and the ledger in which the port records the
	// positions of its rings; nil: no ledger.
	in  func(c *config.Port) (qemu.Acceptor, []byte, error)
	mem *memoryBudgets
	log *slog.Logger
}

// OpenPort implements ports.Guests.
func (g guestPorts) OpenPort(c *config.Port, post func(f func()) bool) (ports.Device, error) {
	in, ledger, err := g.in(c)
	if err != nil {
		return nil, err
	}
	p, err := qemu.NewNetPort(in, vhostnet.Config{Name: c.Name, Queues: c.Queues, MTU: c.MTU, Post: post, Ledger: ledger, Log: g.log}, g.mem.of("port "+c.Name))
	if err != nil {
		return nil, err
	}
	return guestPort{p}, nil
}

// ownAcceptor returns an acceptor for front ends that connect to this process, or that listen for it.
func ownAcceptor(c *config.Port) (in qemu.Acceptor, ledger []byte, err error) {
	if c.Listen == config.ListenGuest {
		in, err = qemu.CallNet(c.Socket)
	} else {
		in, err = qemu.ListenNet(c.Socket)
	}
	return in, nil, err
}

// guestPort adapts a qemu.NetPort to ports.Device.
type guestPort struct{ *qemu.NetPort }

var _ ports.Polled = guestPort{}

// Read implements gateway.Device. It returns no error for a port that has stopped, because the
// guest's driver may start it again.
func (p guestPort) Read(b []byte) (int, gateway.Rest, gateway.Offload, error) {
	n, rest, off := p.NetPort.Read(b)
	if rest == nil {
		return n, nil, gateway.Offload(off), nil
	}
	return n, rest, gateway.Offload(off), nil
}

// Write implements gateway.Device.
func (p guestPort) Write(parts [][]byte, off gateway.Offload) bool {
	return p.NetPort.Write(parts, vhostnet.Offload(off))
}

// WriteWith implements gateway.Gatherer. Only guest ports return a gateway.Rest, so rest is always
// a *vhostnet.Rest.
func (p guestPort) WriteWith(head []byte, rest gateway.Rest, off gateway.Offload) bool {
	return p.NetPort.WriteWith(head, rest.(*vhostnet.Rest), vhostnet.Offload(off))
}

// Takes implements gateway.Device.
func (p guestPort) Takes(off gateway.Offload) bool { return p.NetPort.Takes(vhostnet.Offload(off)) }

// USO implements gateway.Device. It is always true; Takes checks whether the current guest supports
// USO.
func (guestPort) USO() bool { return true }

// SetLink implements gateway.Device. It does nothing, because the protocol cannot report a link
// state; while the link is down, frames from the guest are dropped.
func (guestPort) SetLink(bool) error { return nil }

// Fault implements gateway.Device.
func (p guestPort) Fault() string { return p.Reason() }

// Stats implements gateway.Device.
func (p guestPort) Stats() gateway.PortStats {
	st := p.NetPort.Stats()
	return gateway.PortStats(st)
}

// Remove implements ports.Device. It only closes the port, because nothing of the port is kept.
func (p guestPort) Remove() error { return p.Close() }

// givenPorts opens the ports of a worker, whose front ends are connected to the supervisor.
type givenPorts struct {
	w     *supervisor.Worker
	rings map[string][]byte // ledgers, by socket
}

// acceptor returns the acceptor by which the supervisor passes on a port's front ends. The supervisor
// does not have the front end of a port that was added while the NIC runs: that front end connects
// to the worker and loses the connection when the worker ends.
func (g givenPorts) acceptor(c *config.Port) (qemu.Acceptor, []byte, error) {
	if mem, ok := g.rings[c.Socket]; ok {
		return g.w.Acceptor(givenPort + c.Socket), mem, nil
	}
	f, err := givenFile(g.w, givenRings+c.Socket)
	if err != nil {
		return ownAcceptor(c)
	}
	mem, err := qemu.MapRings(f, c.Queues)
	if err != nil {
		return nil, nil, err
	}
	g.rings[c.Socket] = mem
	return g.w.Acceptor(givenPort + c.Socket), mem, nil
}
