package fabric

import "sync"

const maxMACs = 1024 // maximum number of learnt addresses; frames to others are flooded

type mac = [6]byte

// Switch is a learning Ethernet switch. Make it with New.
type Switch struct {
	mtu int

	mu    sync.Mutex
	ports []*queue
	macs  map[mac]*queue
}

// New returns a segment without ports. mtu is the largest Ethernet payload in bytes.
func New(mtu int) *Switch { return &Switch{mtu: mtu, macs: make(map[mac]*queue)} }

// forward copies a frame from one port to its destination ports. The lock is held.
func (s *Switch) forward(from *queue, frame []byte) {
	dst, src := mac(frame[0:6]), mac(frame[6:12])
	if src[0]&1 == 0 && (len(s.macs) < maxMACs || s.macs[src] != nil) {
		s.macs[src] = from
	}
	if to := s.macs[dst]; to != nil {
		if to != from {
			to.push(frame)
		}
		return
	}
	for _, to := range s.ports {
		if to != from {
			to.push(frame)
		}
	}
}

// unplug removes a port and the addresses learnt on it. The lock is held.
func (s *Switch) unplug(p *queue) {
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
