package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Message is one message with its descriptors. Whoever holds it owns the
// descriptors: take them with TakeFD, close the rest with Close.
type Message struct {
	Header
	Payload []byte
	fds     fdpass.FDs
}

// FDs returns how many descriptors are left in the message.
func (m *Message) FDs() int { return m.fds.Len() }

// TakeFD removes the first descriptor from the message, -1 if there is none.
func (m *Message) TakeFD() int { return m.fds.Take() }

// giveBack returns a descriptor that was taken: one that is refused may be of a kind that
// cannot be closed at once, and the refusal goes first.
func (m *Message) giveBack(fd int) { m.fds.Add(fd) }

// Close closes the descriptors nobody took.
func (m *Message) Close() { m.fds.Close() }

// ReadMessage reads one message. io.EOF means the other side left between two
// messages. After any error the stream is out of step and must be closed.
func ReadMessage(c *net.UnixConn) (_ *Message, err error) {
	m := &Message{}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	var hdr [HeaderSize]byte
	if err := m.fds.ReadFull(c, hdr[:], maxFDs); err != nil {
		return nil, err
	}
	if m.Header, err = ParseHeader(hdr[:]); err != nil {
		return nil, err
	}
	if m.Size == 0 {
		return m, nil
	}
	m.Payload = make([]byte, m.Size)
	if err := m.fds.ReadFull(c, m.Payload, maxFDs); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("vhost-user %v: payload: %w", m.Request, err)
	}
	return m, nil
}

// WriteMessage sends one message with copies of fds, which stay the caller's.
func WriteMessage(c *net.UnixConn, req Request, flags uint32, payload []byte, fds ...int) error {
	b := Header{Request: req, Flags: flags | FlagVersion, Size: uint32(len(payload))}.Append(make([]byte, 0, HeaderSize+len(payload)))
	if err := fdpass.WriteAll(c, append(b, payload...), fds...); err != nil {
		return fmt.Errorf("vhost-user %v: %w", req, err)
	}
	return nil
}
