package ring

// Consumer is the device's side of a send, receive or admin submission queue.
type Consumer struct {
	mem      Bytes
	layout   Layout
	next     uint32 // index of the next entry to read
	producer uint32 // last valid producer index read
}

// NewConsumer starts at index 0.
func NewConsumer(mem Bytes, layout Layout) *Consumer {
	return &Consumer{mem: mem, layout: layout}
}

// Next returns the index of the next entry to read.
func (c *Consumer) Next() uint32 { return c.next }

// Producer returns the last producer index read.
func (c *Consumer) Producer() uint32 { return c.producer }

// Ready returns the entries that can be read without another Poll.
func (c *Consumer) Ready() uint32 { return c.producer - c.next }

// Poll reads the producer index once and returns the entries that can be
// read. It is ErrIndex when the index moved backwards or is more than a queue
// ahead of the entries read.
func (c *Consumer) Poll() (uint32, error) {
	p, err := c.mem.Load32(offProducer)
	if err != nil {
		return 0, err
	}
	return c.accept(p)
}

// accept takes p as the new producer index if it can be true.
func (c *Consumer) accept(p uint32) (uint32, error) {
	n, ok := c.layout.between(c.next, p)
	if !ok || n < c.Ready() {
		return 0, ErrIndex
	}
	c.producer = p
	return n, nil
}

// Doorbell checks a doorbell's index. The producer in memory is the truth and is
// polled: ErrAhead says that the doorbell is ahead of it, ErrIndex that it cannot
// be true. An index behind is an old doorbell and harmless. It returns the entries
// that can be read.
func (c *Consumer) Doorbell(index uint32) (uint32, error) {
	n, err := c.Poll()
	if err != nil {
		return 0, err
	}
	if int32(index-c.producer) > 0 {
		return 0, ErrAhead
	}
	return n, nil
}

// Read copies the first len(dst) bytes of the next entry without taking it;
// len(dst) is at most the stride. The caller has made sure that Ready is not 0.
func (c *Consumer) Read(dst []byte) error { return c.ReadPart(0, dst) }

// ReadPart copies len(dst) bytes from offset off of the next entry.
func (c *Consumer) ReadPart(off uint32, dst []byte) error {
	if c.Ready() == 0 || off > c.layout.stride || uint64(len(dst)) > uint64(c.layout.stride-off) {
		return ErrBounds
	}
	return c.mem.ReadAt(c.layout.slot(c.next)+uint64(off), dst)
}

// Take consumes the next entry: its slot is the driver's again after Commit.
func (c *Consumer) Take() {
	if c.Ready() != 0 {
		c.next++
	}
}

// Commit shows the driver how far entries were taken.
func (c *Consumer) Commit() error {
	return c.mem.Store32(offConsumer, c.next)
}

// Arm asks for a doorbell at the next entry after those polled, then polls
// again to close the race with a driver that did not see the request. It
// returns the entries that can be read; 0 means the device may sleep.
func (c *Consumer) Arm() (uint32, error) {
	if err := c.mem.Store32(offEventIndex, c.producer); err != nil {
		return 0, err
	}
	return c.Poll()
}
