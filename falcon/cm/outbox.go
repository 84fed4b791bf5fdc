package cm

// outbox holds the outputs for the owner of a Manager, oldest first, and the counters.
type outbox struct {
	list  []Output
	read  int // number of outputs already read
	stats Stats
}

func (b *outbox) emit(o Output) { b.list = append(b.list, o) }

// send passes a message to the link. While the link is down the message is dropped: everything
// important is sent again when the link is up.
func (b *outbox) send(p *peer, msg []byte) {
	if !p.up {
		b.stats.SendDropped++
		return
	}
	b.stats.Sent++
	b.emit(Output{Kind: OutSend, Peer: p.Host, Msg: msg})
}

// next removes and returns the oldest output. It returns false when there is none.
func (b *outbox) next(o *Output) bool {
	if b.read == len(b.list) {
		return false
	}
	*o = b.list[b.read]
	b.list[b.read] = Output{}
	b.read++
	if b.read == len(b.list) {
		if cap(b.list) > 1024 {
			b.list = nil
		}
		b.list, b.read = b.list[:0], 0
	}
	return true
}
