package qemu

import (
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/vhostnet"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// NetPort is a function's Ethernet port whose rings are in guest memory. It is served to the
// guest's QEMU over a unix socket:
//
//	-chardev socket,id=c,path=PATH,reconnect=1 -netdev vhost-user,id=n,chardev=c -device virtio-net-pci,netdev=n,…
//
// It serves one front end at a time. After one disconnects, the next may connect.
type NetPort struct {
	*vhostnet.Port
	server *server
	begin  sync.Once
}

// NewNetPort returns a port that accepts its front ends from in, once Serve is called. It maps
// their memory within a budget. The port owns in: it closes in, also when NewNetPort fails.
func NewNetPort(in Acceptor, c vhostnet.Config, memory *guestmem.Budget) (*NetPort, error) {
	port, err := vhostnet.New(c)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	log := c.Log
	if log == nil {
		log = slog.Default()
	}
	log = log.With("port", c.Name)
	p := &NetPort{Port: port}
	p.server = newServer(in, log, func(conn *net.UnixConn) error { return vhostuser.Serve(conn, port, memory) })
	return p, nil
}

// Serve starts to accept front ends.
func (p *NetPort) Serve() { p.begin.Do(p.server.start) }

// Close disconnects the front end and waits until it is gone. The thread that read and wrote the
// port must have stopped using it.
func (p *NetPort) Close() error {
	p.Release()
	return errors.Join(p.server.close(), p.Port.Close())
}
