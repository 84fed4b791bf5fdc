package fabric

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/ring"
)

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

const queueLen = 1024 // maximum number of frames that wait at a port

// queue holds the frames that wait for one port. The switch's lock protects everything but port and
// event.
type queue struct {
	port  string // name of the port
	event int    // eventfd, readable while the queue is not empty

	frames  ring.Queue[[]byte] // at most queueLen; the slots' memory is kept and used again
	dropped uint64             // frames dropped because the queue was full
	sink    [8]byte            // receives the value of the eventfd
}

// push copies a frame to the queue, or drops it when the queue is full.
func (q *queue) push(frame []byte) {
	if q.frames.Len() == queueLen {
		q.dropped++
		return
	}
	slot := q.frames.Push()
	*slot = append((*slot)[:0], frame...)
	if q.frames.Len() == 1 {
		q.signal()
	}
}

// pop removes and returns the next frame, which is valid until the next push. The queue must not be
// empty.
func (q *queue) pop() []byte {
	f := *q.frames.Pop()
	if q.frames.Len() == 0 {
		_, _ = unix.Read(q.event, q.sink[:]) // makes it unreadable again
	}
	return f
}

var one = [8]byte{0: 1}

// signal makes the eventfd readable. Adding one to a counter of at most one cannot fail.
func (q *queue) signal() { _, _ = unix.Write(q.event, one[:]) }
