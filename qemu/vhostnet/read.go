package vhostnet

import (
	"runtime/debug"

	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Read takes the next frame that the guest sent into b, 0 bytes if there is none. What is longer
// than b is dropped.
func (p *Port) Read(b []byte) (n int, o Offload) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	for range p.tx {
		for {
			q := p.tx[p.at]
			ch, err := q.Take()
			if err != nil {
				p.fail(err)
				return 0, o
			}
			if ch == nil {
				break
			}
			size := p.copyOut(ch, b)
			if size > 0 {
				o = parseOffload(p.hdr[:])
			}
			q.Done(0)
			if size == 0 {
				p.stats.RxDropped++
				continue
			}
			p.stats.RxFrames++
			p.stats.RxBytes += uint64(size)
			if p.burst++; p.burst >= queueBurst {
				p.turn()
			}
			return size, o
		}
		p.turn()
	}
	return 0, o
}

// turn goes on to the next queue.
func (p *Port) turn() {
	p.burst = 0
	if p.at++; p.at >= len(p.tx) {
		p.at = 0
	}
}

// copyOut copies the header of a frame to p.hdr and the frame to b; 0: it is none.
func (p *Port) copyOut(ch *virtqueue.Chain, b []byte) int {
	size := ch.OutLen - p.header
	if size < minFrame || size > len(b) {
		return 0
	}
	head, at := p.hdr[:p.header], 0
	for _, s := range ch.Out() {
		if len(head) > 0 {
			k := copy(head, s)
			head, s = head[k:], s[k:]
		}
		at += copy(b[at:size], s)
	}
	return size
}
