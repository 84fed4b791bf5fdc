package vhostnet

import (
	"runtime/debug"

	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Read takes the next frame that the guest sent into b, 0 bytes if there is none. What is longer
// than b is dropped. Of a long frame it copies the beginning, and leaves the rest where it is until
// Return.
func (p *Port) Read(b []byte) (n int, rest *Rest, o Offload) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	for range p.tx {
		for {
			q := p.tx[p.at]
			ch, err := q.Take()
			if err != nil {
				p.fail(err)
				return 0, nil, o
			}
			if ch == nil {
				break
			}
			n, rest = p.copyOut(ch, b)
			if rest != nil || q.owed > 0 { // chains go back in order
				q.owed++
			} else {
				q.Done(0)
			}
			if n == 0 {
				p.stats.RxDropped++
				continue
			}
			p.stats.RxFrames++
			p.stats.RxBytes += uint64(ch.OutLen - p.header)
			if p.burst++; p.burst >= queueBurst {
				p.turn()
			}
			return n, rest, parseOffload(&p.hdr)
		}
		p.turn()
	}
	return 0, nil, o
}

// turn goes on to the next queue.
func (p *Port) turn() {
	p.burst = 0
	if p.at++; p.at >= len(p.tx) {
		p.at = 0
	}
}

// copyOut copies the header of a frame to p.hdr, and the frame to b, or the beginning of a long
// one; 0: it is none.
func (p *Port) copyOut(ch *virtqueue.Chain, b []byte) (n int, rest *Rest) {
	size := ch.OutLen - p.header
	if size < minFrame || size > len(b) {
		return 0, nil
	}
	n = size
	if size >= minRest && p.rests.room(len(ch.Out())) {
		n = headLen
		rest = p.rests.add(p, b[n:size])
	}
	head, at := p.hdr[:p.header], 0
	for _, s := range ch.Out() {
		k := copy(head, s)
		head, s = head[k:], s[k:]
		k = copy(b[at:n], s)
		at += k
		if s = s[k:]; len(s) > 0 {
			p.rests.append(rest, s)
		}
	}
	return n, rest
}
