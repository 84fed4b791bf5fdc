package ring

// Consumer is the device's side of a send, receive or admin submission queue.
type Consumer struct {
	mem      Bytes
	layout   Layout
	next     uint32 // index of the next entry to read
	producer uint32 // last valid producer index read
}

// NewConsumer returns a consumer that starts at index 0.
func NewConsumer(mem Bytes, layout Layout) *Consumer {
	return &Consumer{mem: mem, layout: layout}
}

// Next returns the index of the next entry to read.
func (c *Consumer) Next() uint32 { return c.next }

// Producer returns the last producer index read.
func (c *Consumer) Producer() uint32 { return c.producer }

// Ready returns the number of entries that can be read without another Poll.
func (c *Consumer) Ready() uint32 { return c.producer - c.next }

// Poll reads the producer index once and returns the number of entries that can be read. It returns
// ErrIndex if the index moved backwards or is more than a queue ahead of the entries read.
func (c *Consumer) Poll() (uint32, error) {
	p, err := c.mem.Load32(offProducer)
	if err != nil {
		return 0, err
	}
	return c.accept(p)
}

// accept stores p as the new producer index if it is possible.
func (c *Consumer) accept(p uint32) (uint32, error) {
	n, ok := c.layout.between(c.next, p)
	if !ok || n < c.Ready() {
		return 0, ErrIndex
	}
	c.producer = p
	return n, nil
}

// Doorbell checks a doorbell's index. The producer index in memory is authoritative and is polled.
// Doorbell returns ErrAhead if the doorbell is ahead of it, and ErrIndex if the producer index is
// impossible. A doorbell behind it is an old one and harmless. Otherwise it returns the number of
// entries that can be read.
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

// Read copies the first len(dst) bytes of the next entry without consuming it. len(dst) is at most
// the stride, and Ready must not be 0.
func (c *Consumer) Read(dst []byte) error { return c.ReadPart(0, dst) }

// ReadPart copies len(dst) bytes from offset off of the next entry.
func (c *Consumer) ReadPart(off uint32, dst []byte) error {
	if c.Ready() == 0 || off > c.layout.stride || uint64(len(dst)) > uint64(c.layout.stride-off) {
		return ErrBounds
	}
	return c.mem.ReadAt(c.layout.slot(c.next)+uint64(off), dst)
}

// Take consumes the next entry. The driver may reuse its slot after Commit.
func (c *Consumer) Take() {
	if c.Ready() != 0 {
		c.next++
	}
}

// Commit writes to memory how many entries were consumed.
func (c *Consumer) Commit() error {
	return c.mem.Store32(offConsumer, c.next)
}

// Arm requests a doorbell at the next entry after those polled. Then it polls again, in case the
// driver did not see the request in time. It returns the number of entries that can be read; 0
// means that the device may sleep.
func (c *Consumer) Arm() (uint32, error) {
	if err := c.mem.Store32(offEventIndex, c.producer); err != nil {
		return 0, err
	}
	return c.Poll()
}
