package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Message is one message with its descriptors. The message owns them until they are taken with
// TakeFD; Close closes the rest.
type Message struct {
	Header
	Payload []byte
	fds     fdpass.FDs
}

// FDs returns the number of descriptors left in the message.
func (m *Message) FDs() int { return m.fds.Len() }

// TakeFD removes the first descriptor from the message and returns it, or -1 if there is none.
func (m *Message) TakeFD() int { return m.fds.Take() }

// giveBack puts a descriptor that was taken back into the message. It is for refused descriptors:
// closing one may block, so the refusal is sent first.
func (m *Message) giveBack(fd int) { m.fds.Add(fd) }

// Close closes the descriptors that were not taken.
func (m *Message) Close() { m.fds.Close() }

// ReadMessage reads one message. io.EOF means that the other side disconnected between two
// messages. After any error the connection must be closed.
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

// WriteMessage sends one message with copies of fds. The caller keeps ownership of fds.
func WriteMessage(c *net.UnixConn, req Request, flags uint32, payload []byte, fds ...int) error {
	b := Header{Request: req, Flags: flags | FlagVersion, Size: uint32(len(payload))}.Append(make([]byte, 0, HeaderSize+len(payload)))
	if err := fdpass.WriteAll(c, append(b, payload...), fds...); err != nil {
		return fmt.Errorf("vhost-user %v: %w", req, err)
	}
	return nil
}
