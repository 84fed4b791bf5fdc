package vhostnet

import (
	"runtime/debug"

	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Read copies the next frame from the guest into b. It returns 0 bytes if there is none or the
// guest's turn is over; the next turn begins with the frames that are left. Frames longer than b or
// too short for an Ethernet header are dropped, and count as work of the turn too. Read copies only
// the beginning of a long frame; its rest stays in guest memory until Return.
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
			if rest != nil || q.owed > 0 { // chains are completed in order
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
	if dropped { // publish these chains now: the caller got no frame, and may not call Settle
		for _, q := range p.tx {
			p.show(q)
		}
	}
	return 0, nil, o
}

// turn moves on to the next queue.
func (p *Port) turn() {
	p.burst = 0
	if p.at++; p.at >= len(p.tx) {
		p.at = 0
	}
}

// copyOut copies a frame's header to p.hdr and the frame, or the beginning of a long one, to b. It
// returns 0 if the frame is too short or does not fit into b.
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
