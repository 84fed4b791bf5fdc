package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Conn is one side's view of a session.
type Conn struct {
	side side

	readMu sync.Mutex
	in     *ring.Consumer
	slot   [abi.WindowMessageSize]byte
	rest   []byte // of slot, not read yet

	writeMu sync.Mutex
	out     *ring.Producer

	readable, writable  chan struct{} // capacity one: try again
	readTime, writeTime *deadline

	once   sync.Once
	closed chan struct{}
}

// side has the steps in which driver and device differ.
type side interface {
	// ended reports whether the other side has ended the session.
	ended() bool
	// call notifies the other side that there is something in its ring.
	call()
	// took is called when slots of the other side's ring have become free.
	took()
	// full is called before a Write waits for room, and when it no longer waits.
	full(waits bool)
	// leave ends the session.
	leave()
	addr() net.Addr
}

func newConn(s side, in *ring.Consumer, out *ring.Producer) *Conn {
	return &Conn{
		side: s, in: in, out: out, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		readTime: newDeadline(), writeTime: newDeadline(), closed: make(chan struct{}),
	}
}

// Look makes Read and Write check the block again. Call it when the other side rang or interrupted.
// It does not block.
func (c *Conn) Look() {
	for _, ch := range []chan struct{}{c.readable, c.writable} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// wait waits until there is a reason to check again.
func (c *Conn) wait(again <-chan struct{}, d *deadline) error {
	select {
	case <-c.closed:
		return net.ErrClosed
	case <-d.done():
		return os.ErrDeadlineExceeded
	default:
	}
	select {
	case <-again:
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-d.done():
		return os.ErrDeadlineExceeded
	}
}

// Read reads messages, which follow each other as in a byte stream. io.EOF means that the other
// side has ended the session. A slot that does not hold a message is read as a header with an
// impossible length.
func (c *Conn) Read(b []byte) (n int, err error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for len(c.rest) == 0 {
		switch there, err := c.next(); {
		case err != nil:
			return 0, err
		case there:
			continue
		}
		if err := c.wait(c.readable, c.readTime); err != nil {
			return 0, err
		}
	}
	n = copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads the next slot, if there is one.
func (c *Conn) next() (there bool, err error) {
	over := c.side.ended() // read before the ring, so that the last messages are still read
	n, err := c.in.Poll()
	if err == nil && n == 0 {
		n, err = c.in.Arm()
	}
	if err != nil {
		return false, fmt.Errorf("control ring: %w", err)
	}
	if n == 0 {
		if over {
			return false, io.EOF
		}
		return false, nil
	}
	if err := c.in.Read(c.slot[:]); err != nil {
		return false, err
	}
	c.in.Take()
	if err := c.in.Commit(); err != nil {
		return false, err
	}
	c.side.took()
	c.rest = message(c.slot[:])
	return true, nil
}

// message returns the message in a slot. If its length is impossible, it returns a header with a
// length that no message has.
func message(slot []byte) []byte {
	var h abi.MsgHeader
	h.Unmarshal(slot)
	if h.Length > abi.WindowMessageSize {
		h.Length = ^uint32(0)
		h.Marshal(slot)
		return slot[:abi.MsgHeaderSize]
	}
	return slot[:max(h.Length, abi.MsgHeaderSize)]
}

// Write writes whole messages and waits for room.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	var slot [abi.WindowMessageSize]byte
	for n < len(b) {
		whole, err := whole(b[n:])
		if err != nil {
			return n, err
		}
		for part := whole; len(part) > 0; {
			s := slot[:0]
			s, part = cut(s, part)
			if err := c.push(s); err != nil {
				return n, err
			}
		}
		n += len(whole)
	}
	return n, c.publish()
}

// whole returns the first of several messages.
func whole(b []byte) ([]byte, error) {
	if len(b) < abi.MsgHeaderSize {
		return nil, fmt.Errorf("control ring: %d bytes are not a message", len(b))
	}
	var h abi.MsgHeader
	h.Unmarshal(b)
	if h.Length < abi.MsgHeaderSize || uint64(h.Length) > uint64(len(b)) {
		return nil, fmt.Errorf("control ring: a message of %d bytes, of which %d are there", h.Length, len(b))
	}
	if h.Length > abi.WindowMessageSize && element(h.Type) == 0 {
		return nil, fmt.Errorf("control ring: a message of %d bytes, the limit is %d", h.Length, abi.WindowMessageSize)
	}
	return b[:h.Length], nil
}

// element returns the size of the elements if a message is a list, else 0.
func element(t abi.MsgType) int {
	switch t {
	case abi.MsgCQEvent:
		return 4
	case abi.MsgDoorbell:
		return abi.DoorbellSize
	}
	return 0
}

// cut appends as much of a message as fits a slot, and returns the rest as a message of its own. It
// changes the header of both parts.
func cut(slot, m []byte) (filled, rest []byte) {
	if len(m) <= abi.WindowMessageSize {
		return append(slot, m...), nil
	}
	var h abi.MsgHeader
	h.Unmarshal(m)
	size := element(h.Type)
	body := (abi.WindowMessageSize - abi.MsgHeaderSize) / size * size
	h.Length = uint32(abi.MsgHeaderSize + body)
	filled = append(slot, m[:h.Length]...)
	h.Marshal(filled)
	rest = append(make([]byte, abi.MsgHeaderSize), m[h.Length:]...)
	h.Length = uint32(len(rest))
	h.Marshal(rest)
	return filled, rest
}

// push puts a slot into the ring and waits for room.
func (c *Conn) push(slot []byte) error {
	for waits := false; ; waits = true {
		select {
		case <-c.closed:
			return net.ErrClosed
		default:
		}
		if c.side.ended() {
			return errEnded
		}
		err := c.out.Push(slot)
		if !errors.Is(err, ring.ErrFull) {
			if waits {
				c.side.full(false)
			}
			return err
		}
		if err := c.publish(); err != nil {
			return err
		}
		if !waits {
			c.side.full(true) // and try again: room may have come before the other side saw it
			continue
		}
		if err := c.wait(c.writable, c.writeTime); err != nil {
			c.side.full(false)
			return err
		}
	}
}

// publish makes pushed slots visible and notifies the other side if it asked for that.
func (c *Conn) publish() error {
	_, wanted, err := c.out.Publish()
	if wanted {
		c.side.call()
	}
	return err
}

// Close ends the session.
func (c *Conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.readTime.set(time.Time{})
		c.writeTime.set(time.Time{})
		c.side.leave()
	})
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.side.addr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.side.addr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readTime.set(t)
	c.writeTime.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readTime.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeTime.set(t)
	return nil
}

// addr is the net.Addr of a block.
type addr string

func (addr) Network() string  { return "window" }
func (a addr) String() string { return string(a) }
