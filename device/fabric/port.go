package fabric

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// port is one port of a Switch; everything but name, sw and event is under the switch's lock.
type port struct {
	sw    *Switch
	name  string
	event int // eventfd, readable while the queue is not empty

	queue  ring.Queue[[]byte] // at most queueLen; the slots' memory is kept and used again
	closed bool
	stats  tap.Stats
	sink   [8]byte // what the eventfd held
}

var _ tap.Port = (*port)(nil)

func (p *port) Name() string { return p.name }
func (p *port) FD() int      { return p.event }
func (p *port) MTU() int     { return p.sw.mtu }

// Capabilities implements tap.Port: a segment in memory carries single frames.
func (p *port) Capabilities() tap.Capabilities { return tap.Capabilities{MaxSegments: 1} }

func (p *port) Stats() tap.Stats {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	return p.stats
}

// Write implements tap.Port.
func (p *port) Write(frames [][]byte, _ bool) (int, error) {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("fabric port %s: write: %w", p.name, net.ErrClosed)
	}
	for _, f := range frames {
		if len(f) < tap.MinFrame || len(f) > p.sw.mtu+tap.FrameOverhead {
			p.stats.TxDropped++
			continue
		}
		p.stats.TxFrames++
		p.stats.TxBytes += uint64(len(f))
		p.sw.forward(p, f)
	}
	return len(frames), nil
}

// enqueue copies a frame to the queue, or drops it when the queue is full.
func (p *port) enqueue(frame []byte) {
	if p.queue.Len() == queueLen {
		p.stats.RxDropped++
		return
	}
	slot := p.queue.Push()
	*slot = append((*slot)[:0], frame...)
	if p.queue.Len() == 1 {
		p.signal()
	}
}

var one = [8]byte{0: 1}

// signal makes the eventfd readable. Adding one to a counter of at most one cannot fail.
func (p *port) signal() { _, _ = unix.Write(p.event, one[:]) }

// Read implements tap.Port.
func (p *port) Read(bufs [][]byte, got []tap.Received) (n int, err error) {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("fabric port %s: read: %w", p.name, net.ErrClosed)
	}
	had := p.queue.Len() > 0
	for n < len(bufs) && p.queue.Len() > 0 {
		f := *p.queue.Pop()
		if len(f) > len(bufs[n]) {
			p.stats.RxDropped++
			continue
		}
		got[n] = tap.Received{Len: copy(bufs[n], f)}
		p.stats.RxFrames++
		p.stats.RxBytes += uint64(got[n].Len)
		n++
	}
	if had && p.queue.Len() == 0 {
		_, _ = unix.Read(p.event, p.sink[:]) // back to not readable
	}
	return n, nil
}

// Close implements tap.Port.
func (p *port) Close() error {
	p.sw.mu.Lock()
	defer p.sw.mu.Unlock()
	if p.closed {
		return fmt.Errorf("fabric port %s: close: %w", p.name, net.ErrClosed)
	}
	p.closed = true
	p.sw.unplug(p)
	return unix.Close(p.event)
}
