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

// NetPort is a function's Ethernet port in the memory of a guest, served to its QEMU over a unix
// socket:
//
//	-chardev socket,id=c,path=PATH,reconnect=1 -netdev vhost-user,id=n,chardev=c -device virtio-net-pci,netdev=n,…
//
// One front end is served at a time. When it leaves, the next may come.
type NetPort struct {
	*vhostnet.Port
	door  *turnstile
	begin sync.Once
}

// NewNetPort makes a port whose front ends come from in, which it closes. They are let in by Serve,
// and their memory is mapped within a budget.
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

// Serve lets front ends in.
func (p *NetPort) Serve() { p.begin.Do(p.door.open) }

// Close disconnects the front end and waits for that. The thread that read and wrote the port does
// so no longer.
func (p *NetPort) Close() error {
	p.Release()
	return errors.Join(p.door.close(), p.Port.Close())
}

// ListenNet is where front ends of a port come to: it listens at path.
func ListenNet(path string) (Acceptor, error) {
	s, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	return s, nil
}

// CallNet is where front ends of a port come from that listen themselves (QEMU's server=on): it
// connects to path, and again after each is gone.
func CallNet(path string) (Acceptor, error) {
	if path == "" || len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d; choose a shorter directory", path, len(path), maxSocketPath)
	}
	return &caller{path: path, done: make(chan struct{})}, nil
}

// caller is an Acceptor that connects.
type caller struct {
	path string
	once sync.Once
	done chan struct{}
}

// callPause is how long a caller waits for its front end to listen.
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
