package main

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/cmd/vnic/supervisor"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
)

// guestPorts makes ports in the memory of guests (ports.Guests).
type guestPorts struct {
	// in is where the front ends of a port come from, and where it notes how its rings stand; nil:
	// nowhere.
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

// ownDoor makes this process the one that front ends know.
func ownDoor(c *config.Port) (in qemu.Acceptor, ledger []byte, err error) {
	if c.Listen == config.ListenGuest {
		in, err = qemu.CallNet(c.Socket)
	} else {
		in, err = qemu.ListenNet(c.Socket)
	}
	return in, nil, err
}

// guestPort is a port in a guest's memory as a device of the NIC.
type guestPort struct{ *qemu.NetPort }

var _ ports.Polled = guestPort{}

// Read implements gateway.Port. A port that stopped is not gone: its guest may begin anew.
func (p guestPort) Read(b []byte) (int, gateway.Rest, gateway.Offload, error) {
	n, rest, off := p.NetPort.Read(b)
	if rest == nil {
		return n, nil, gateway.Offload(off), nil
	}
	return n, rest, gateway.Offload(off), nil
}

// Write implements gateway.Port.
func (p guestPort) Write(parts [][]byte, off gateway.Offload) bool {
	return p.NetPort.Write(parts, vhostnet.Offload(off))
}

// WriteWith implements gateway.Gatherer. All ends that are left anywhere are those of such ports.
func (p guestPort) WriteWith(head []byte, rest gateway.Rest, off gateway.Offload) bool {
	return p.NetPort.WriteWith(head, rest.(*vhostnet.Rest), vhostnet.Offload(off))
}

// Takes implements gateway.Port.
func (p guestPort) Takes(off gateway.Offload) bool { return p.NetPort.Takes(vhostnet.Offload(off)) }

// USO implements gateway.Port: Takes knows of the guest that is there.
func (guestPort) USO() bool { return true }

// SetLink implements gateway.Port. The protocol has no way to tell; what the guest sends is
// dropped.
func (guestPort) SetLink(bool) error { return nil }

// Fault implements gateway.Port.
func (p guestPort) Fault() string { return p.Reason() }

// Stats implements gateway.Port.
func (p guestPort) Stats() gateway.PortStats {
	st := p.NetPort.Stats()
	return gateway.PortStats(st)
}

// Remove implements ports.Device: nothing of it is kept.
func (p guestPort) Remove() error { return p.Close() }

// givenPorts are those of a worker: its supervisor knows their front ends.
type givenPorts struct {
	w     *supervisor.Worker
	rings map[string][]byte // ledgers, by socket
}

// door is where the supervisor hands over the front end of a port. One that was set while the NIC
// runs is not the supervisor's: its front end loses the connection with the worker.
func (g givenPorts) door(c *config.Port) (qemu.Acceptor, []byte, error) {
	if mem, ok := g.rings[c.Socket]; ok {
		return g.w.Acceptor(givenPort + c.Socket), mem, nil
	}
	f, err := givenFile(g.w, givenRings+c.Socket)
	if err != nil {
		return ownDoor(c)
	}
	mem, err := qemu.MapRings(f, c.Queues)
	if err != nil {
		return nil, nil, err
	}
	g.rings[c.Socket] = mem
	return g.w.Acceptor(givenPort + c.Socket), mem, nil
}
