package fabric

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
)

const (
	queueLen = 1024 // frames a port holds before it drops
	maxMACs  = 1024 // learnt addresses; what does not fit is flooded
)

type mac = [6]byte

// Switch is a learning Ethernet switch. Make it with New.
type Switch struct {
	mtu int

	mu    sync.Mutex
	ports []*port
	macs  map[mac]*port
}

// New makes a segment without ports. mtu is the largest Ethernet payload in bytes.
func New(mtu int) *Switch { return &Switch{mtu: mtu, macs: make(map[mac]*port)} }

// Port plugs in a new port. Close unplugs it.
func (s *Switch) Port(name string) (tap.Port, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("fabric port %s: eventfd: %w", name, err)
	}
	p := &port{sw: s, name: name, event: fd}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.ports {
		if q.name == name {
			return nil, errors.Join(fmt.Errorf("fabric port %s: the name is taken", name), unix.Close(fd))
		}
	}
	s.ports = append(s.ports, p)
	return p, nil
}

// forward copies a frame from one port to where it belongs. The lock is held.
func (s *Switch) forward(from *port, frame []byte) {
	dst, src := mac(frame[0:6]), mac(frame[6:12])
	if src[0]&1 == 0 && (len(s.macs) < maxMACs || s.macs[src] != nil) {
		s.macs[src] = from
	}
	if to := s.macs[dst]; to != nil {
		if to != from {
			to.enqueue(frame)
		}
		return
	}
	for _, to := range s.ports {
		if to != from {
			to.enqueue(frame)
		}
	}
}

// unplug removes a port and what was learnt on it. The lock is held.
func (s *Switch) unplug(p *port) {
	for i, q := range s.ports {
		if q == p {
			s.ports = append(s.ports[:i], s.ports[i+1:]...)
			break
		}
	}
	for m, q := range s.macs {
		if q == p {
			delete(s.macs, m)
		}
	}
}
