package vhostnet

import (
	"runtime/debug"

	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Read takes the next frame that the guest sent into b, 0 bytes if there is none, or the guest's turn
// is over: what is left waits for the next, which begins with that. What is longer than b is dropped,
// and is work of the turn as what is not. Of a long frame it copies the beginning, and leaves the rest where it is until
// Return.
func (p *Port) Read(b []byte) (n int, rest *Rest, o Offload) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer p.survive()
	dropped := false
	for range p.tx {
		for {
			q := p.tx[p.at]
			ch, err := q.Take(&p.reading)
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
			if p.burst++; p.burst >= queueBurst {
				p.turn()
			}
			if n == 0 {
				p.stats.RxDropped++
				dropped = true
				continue
			}
			p.stats.RxFrames++
			p.stats.RxBytes += uint64(ch.OutLen - p.header)
			return n, rest, parseOffload(&p.hdr)
		}
		p.turn()
	}
	p.reading = readWork
	if dropped { // nobody else may have something to show
		for _, q := range p.tx {
			p.show(q)
		}
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
