package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// message is one message with its descriptors. The message owns them; close closes those that were
// not taken.
type message struct {
	Header
	body []byte // valid until the next read into the same buffer
	fds  fdpass.FDs
}

func (m *message) close() { m.fds.Close() }

// readMessage reads one message into buf, which must have room for maxMessage bytes. It reads the
// header and the body separately, because the descriptors of a read belong to the last message that
// begins in it. io.EOF means that the other side disconnected between two messages. After any error
// the connection must be closed.
func readMessage(c *net.UnixConn, buf []byte) (m message, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if err := m.fds.ReadFull(c, buf[:HeaderSize], MaxFDs); err != nil {
		return m, err
	}
	if m.Header, err = ParseHeader(buf); err != nil {
		return m, err
	}
	m.body = buf[HeaderSize:m.Size]
	if len(m.body) == 0 {
		return m, nil
	}
	if err := m.fds.ReadFull(c, m.body, MaxFDs); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m, fmt.Errorf("vfio-user %v: body: %w", m.Command, err)
	}
	return m, nil
}

// writeMessage sends a message with copies of fds. The caller keeps ownership of fds. writeMessage
// sets the header's Size.
func writeMessage(c *net.UnixConn, h Header, body []byte, fds ...int) error {
	h.Size = uint32(HeaderSize + len(body))
	b := append(h.Append(make([]byte, 0, h.Size)), body...)
	if err := fdpass.WriteAll(c, b, fds...); err != nil {
		return fmt.Errorf("vfio-user %v: %w", h.Command, err)
	}
	return nil
}
