package ring

// Producer is the driver's side of a send, receive or admin submission queue.
type Producer struct {
	mem       Bytes
	layout    Layout
	next      uint32 // index of the next entry
	published uint32 // producer index that the device knows
	consumer  uint32 // last consumer index read
}

// NewProducer returns a producer that starts at index 0. The driver must have zeroed the area.
func NewProducer(mem Bytes, layout Layout) *Producer {
	return &Producer{mem: mem, layout: layout}
}

// Next returns the index that the next pushed entry gets.
func (p *Producer) Next() uint32 { return p.next }

// Free returns the number of free slots. It reads the device's consumer index only if the last
// known one leaves none free.
func (p *Producer) Free() (uint32, error) {
	if p.next-p.consumer == p.layout.Entries() {
		c, err := p.mem.Load32(offConsumer)
		if err != nil {
			return 0, err
		}
		if _, ok := p.layout.between(c, p.published); !ok {
			return 0, ErrIndex
		}
		p.consumer = c
	}
	return p.layout.Entries() - (p.next - p.consumer), nil
}

// Pending reports whether the entry with a pushed index has not been consumed yet.
func (p *Producer) Pending(index uint32) (bool, error) {
	c, err := p.mem.Load32(offConsumer)
	if err != nil {
		return false, err
	}
	if _, ok := p.layout.between(c, p.published); !ok {
		return false, ErrIndex
	}
	return int32(index-c) >= 0, nil
}

// Push writes one entry, at most a stride long, into the next slot, or returns ErrFull. The device
// sees the entry after Publish.
func (p *Producer) Push(entry []byte) error {
	if uint64(len(entry)) > uint64(p.layout.stride) {
		return ErrBounds
	}
	free, err := p.Free()
	if err != nil {
		return err
	}
	if free == 0 {
		return ErrFull
	}
	if err := p.mem.WriteAt(p.layout.slot(p.next), entry); err != nil {
		return err
	}
	p.next++
	return nil
}

// Publish makes the pushed entries visible and returns the new producer index for the doorbell.
// needBell reports whether the device's event index requests that doorbell. Without the event index
// the driver ignores needBell and rings for every change.
func (p *Producer) Publish() (index uint32, needBell bool, err error) {
	old := p.published
	if p.next == old {
		return old, false, nil
	}
	if err := p.mem.Store32(offProducer, p.next); err != nil {
		return 0, false, err
	}
	p.published = p.next
	event, err := p.mem.Load32(offEventIndex)
	if err != nil {
		return 0, false, err
	}
	return p.next, passed(event, old, p.next), nil
}

// passed reports whether a move from old to next passes event.
func passed(event, old, next uint32) bool { return next-event-1 < next-old }
