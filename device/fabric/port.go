package fabric

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
)

// port is one port of a Switch. The switch's lock protects everything but sw.
type port struct {
	sw     *Switch
	queue  queue // frames for it
	closed bool
	stats  tap.Stats // without the frames that the queue dropped
}

var _ tap.Uplink = (*port)(nil)

// Port adds a port to the switch. The port's Close removes it.
func (s *Switch) Port(name string) (tap.Uplink, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("fabric port %s: eventfd: %w", name, err)
	}
	p := &port{sw: s, queue: queue{port: name, event: fd}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.ports {
		if q.port == name {
			return nil, errors.Join(fmt.Errorf("fabric port %s: the name is taken", name), unix.Close(fd))
		}
	}
	s.ports = append(s.ports, &p.queue)
	return p, nil
}

func (p *port) Name() string { return p.queue.port }
func (p *port) FD() int      { return p.queue.event }
func (p *port) MTU() int     { return p.sw.mtu }

// Capabilities implements tap.Uplink: a segment in memory carries single frames.
func (p *port) Capabilities() tap.Capabilities { return tap.Capabilities{MaxSegments: 1} }

func (p *port) Stats() tap.Stats {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	st := p.stats
	st.RxDropped += p.queue.dropped
	return st
}

// Write implements tap.Uplink.
func (p *port) Write(frames [][]byte, _ bool) (int, error) {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("fabric port %s: write: %w", p.queue.port, net.ErrClosed)
	}
	for _, f := range frames {
		if len(f) < tap.MinFrame || len(f) > p.sw.mtu+tap.FrameOverhead {
			p.stats.TxDropped++
			continue
		}
		p.stats.TxFrames++
		p.stats.TxBytes += uint64(len(f))
		p.sw.forward(&p.queue, f)
	}
	return len(frames), nil
}

// Read implements tap.Uplink.
func (p *port) Read(bufs [][]byte, got []tap.Received) (n int, err error) {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("fabric port %s: read: %w", p.queue.port, net.ErrClosed)
	}
	for n < len(bufs) && p.queue.frames.Len() > 0 {
		f := p.queue.pop()
		if len(f) > len(bufs[n]) {
			p.stats.RxDropped++
			continue
		}
		got[n] = tap.Received{Len: copy(bufs[n], f)}
		p.stats.RxFrames++
		p.stats.RxBytes += uint64(got[n].Len)
		n++
	}
	return n, nil
}

// Close implements tap.Uplink.
func (p *port) Close() error {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return fmt.Errorf("fabric port %s: close: %w", p.queue.port, net.ErrClosed)
	}
	p.closed = true
	p.sw.unplug(&p.queue)
	return unix.Close(p.queue.event)
}
