package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

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
	door  *turnstile
	begin sync.Once
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
	p.door = newTurnstile(in, log, func(conn *net.UnixConn) error { return vhostuser.Serve(conn, port, memory) })
	_, p.door.single = in.(*caller)
	return p, nil
}

// Serve starts to accept front ends.
func (p *NetPort) Serve() { p.begin.Do(p.door.open) }

// Close disconnects the front end and waits until it is gone. The thread that read and wrote the
// port must have stopped using it.
func (p *NetPort) Close() error {
	p.Release()
	return errors.Join(p.door.close(), p.Port.Close())
}

// ListenNet returns an Acceptor that listens at path for front ends of a port.
func ListenNet(path string) (Acceptor, error) {
	s, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	return s, nil
}

// CallNet returns an Acceptor for front ends that listen themselves (QEMU's server=on). It connects
// to path, and connects again after each front end is gone.
func CallNet(path string) (Acceptor, error) {
	if path == "" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d; choose a shorter directory", path, len(path), maxSocketPath)
	}
	return &caller{path: path, done: make(chan struct{})}, nil
}

// caller is an Acceptor that connects to a listening front end.
type caller struct {
	path string
	once sync.Once
	done chan struct{}
}

// callPause is the pause between two attempts of a caller to connect.
const callPause = 100 * time.Millisecond

// AcceptUnix implements Acceptor.
func (c *caller) AcceptUnix() (*net.UnixConn, error) {
	for {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path, Net: "unix"})
		select {
		case <-c.done:
			if err == nil {
				conn.Close()
			}
			return nil, net.ErrClosed
		default:
		}
		if err == nil {
			return conn, nil
		}
		select {
		case <-c.done:
			return nil, net.ErrClosed
		case <-time.After(callPause):
		}
	}
}

// Close implements Acceptor.
func (c *caller) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}
