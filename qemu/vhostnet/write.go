package vhostnet

import (
	"runtime/debug"

	"github.com/falcon-vnic/vnic/qemu/virtqueue"
)

// Takes reports whether the guest's driver accepts frames with this offload.
func (p *Port) Takes(o Offload) bool {
	if !o.NeedsCsum && o.GSO == 0 {
		return true
	}
	need := uint64(featGuestCsum)
	switch o.GSO &^ gsoECN {
	case gsoTCP4:
		need |= featGuestTSO4
	case gsoTCP6:
		need |= featGuestTSO6
	case gsoUDP:
		need |= featGuestUSO4 | featGuestUSO6
	}
	if o.GSO&gsoECN != 0 {
		need |= featGuestECN
	}
	return p.takes.Load()&need == need
}

// Write writes a frame, the concatenation of parts, to the guest. It returns false if the guest has
// no room for the frame, which is then dropped and counted.
func (p *Port) Write(parts [][]byte, o Offload) (ok bool) {
	defer p.survive(debug.SetPanicOnFault(true))
	return p.give(parts, o)
}

// WriteWith is like Write for a frame that begins with head and ends with a Rest in another guest's
// memory. It copies the rest from there; the rest is no longer available afterwards.
func (p *Port) WriteWith(head []byte, rest *Rest, o Offload) (ok bool) {
	if rest.segs == nil { // fetched already, or lost
		p.parts[0], p.parts[1] = head, rest.room
		return !rest.gone && p.Write(p.parts[:2], o)
	}
	p.parts[0] = head
	n := 1 + copy(p.parts[1:], rest.segs)
	defer p.surviveBoth(rest, debug.SetPanicOnFault(true))
	ok = p.give(p.parts[:n], o)
	rest.taken()
	return ok
}

// give is Write without the handling of faults.
func (p *Port) give(parts [][]byte, o Offload) bool {
	size := 0
	for _, b := range parts {
		size += len(b)
	}
	if len(p.rx) == 0 || !p.write(p.queueFor(parts[0]), parts, size, o) {
		p.stats.TxDropped++
		return false
	}
	p.stats.TxFrames++
	p.stats.TxBytes += uint64(size)
	return true
}

// surviveBoth is like survive for a copy between two guests. It fails the port of the guest whose
// memory faulted. If that is the sender, the receiver's ring goes back to where the frame began.
func (p *Port) surviveBoth(rest *Rest, before bool) {
	v := recover()
	debug.SetPanicOnFault(before)
	switch err := virtqueue.Recovered(v); {
	case err == nil:
	case rest.from.mem.Faulted(v):
		p.stats.TxDropped++
		p.begun.queue.ring.Back(p.begun.at)
		rest.from.fail(err)
	default:
		p.fail(err)
	}
	if rest.segs != nil {
		rest.taken()
	}
}

func (p *Port) write(q *queue, parts [][]byte, size int, o Offload) bool {
	start := q.ring.Mark()
	p.begun = begun{q, start}
	need := p.header + size
	ch, err := q.ring.Take(&p.writing)
	if err != nil {
		p.fail(err)
		return false
	}
	if ch == nil {
		return false
	}
	buffers := 1
	if ch.InLen < need {
		if buffers = p.count(q, ch.InLen, need); buffers == 0 {
			if q.ring != nil {
				q.ring.Back(start)
			}
			return false
		}
		q.ring.Back(start) // the header, in the first buffer, contains the number of buffers
		if ch, err = q.ring.Take(&p.writing); err != nil {
			p.fail(err) // the guest has changed the chain since
			return false
		}
	}
	o.put(p.hdr[:p.header], len(parts[0]), buffers)
	f := filler{head: p.hdr[:p.header], parts: parts}
	for i := range buffers {
		if i > 0 {
			if ch, err = q.ring.Take(&p.writing); err != nil {
				p.fail(err)
				return false
			}
		}
		if ch == nil {
			break
		}
		p.written[i] = f.fill(ch.In())
	}
	if !f.done() { // the guest has made the buffers shorter since
		q.ring.Back(start)
		return false
	}
	for _, n := range p.written[:buffers] {
		q.ring.Done(n)
	}
	return true
}

// count takes further chains until a frame fits. It returns the number of chains, with the first,
// or 0 if the frame does not fit.
func (p *Port) count(q *queue, have, need int) (buffers int) {
	if p.features&featMerge == 0 {
		return 0
	}
	for buffers = 1; have < need; buffers++ {
		if buffers == maxBuffers {
			return 0
		}
		ch, err := q.ring.Take(&p.writing)
		if err != nil {
			p.fail(err)
			return 0
		}
		if ch == nil {
			return 0
		}
		have += ch.InLen
	}
	return buffers
}

// filler copies a header and parts into buffers.
type filler struct {
	head  []byte
	parts [][]byte
	at    int // offset in parts[0]
}

func (f *filler) done() bool { return len(f.parts) == 0 }

// fill copies as much as fits into bufs and returns the number of bytes.
func (f *filler) fill(bufs [][]byte) (n int) {
	for _, b := range bufs {
		k := copy(b, f.head)
		f.head, b = f.head[k:], b[k:]
		n += k
		for len(f.parts) > 0 {
			k := copy(b, f.parts[0][f.at:])
			b = b[k:]
			n += k
			if f.at += k; f.at < len(f.parts[0]) {
				break
			}
			f.parts, f.at = f.parts[1:], 0
		}
		if len(f.parts) == 0 {
			break
		}
	}
	return n
}

// queueFor chooses the receive queue by a hash of IP addresses and ports, so that a flow stays in
// one queue.
func (p *Port) queueFor(frame []byte) *queue {
	if len(p.rx) == 1 || len(frame) < minFrame+24 {
		return p.rx[0]
	}
	const ip = minFrame
	from, to := ip+12, ip+24 // IPv4 without options: the ports follow the addresses
	if frame[ip]>>4 == 6 {
		from, to = ip+8, min(ip+44, len(frame))
	}
	h := uint32(2166136261)
	for _, b := range frame[from:to] {
		h = (h ^ uint32(b)) * 16777619
	}
	return p.rx[int(h>>8)%len(p.rx)]
}
