package falcon

// ackList holds the connections with a coalesced acknowledgement that time will send. All wait equally long, so the
// first to come is the first due.
type ackList struct{ head, tail *Conn }

func (l *ackList) deadline() Time {
	if l.head == nil {
		return never
	}
	return l.head.ackAt
}

func (l *ackList) add(c *Conn, at Time) {
	c.ackAt, c.ackPrev = at, l.tail
	if l.tail != nil {
		l.tail.ackNext = c
	} else {
		l.head = c
	}
	l.tail = c
}

// remove takes c out; it may be in no list.
func (l *ackList) remove(c *Conn) {
	if c.ackAt == 0 {
		return
	}
	if c.ackPrev != nil {
		c.ackPrev.ackNext = c.ackNext
	} else {
		l.head = c.ackNext
	}
	if c.ackNext != nil {
		c.ackNext.ackPrev = c.ackPrev
	} else {
		l.tail = c.ackPrev
	}
	c.ackNext, c.ackPrev, c.ackAt = nil, nil, 0
}
