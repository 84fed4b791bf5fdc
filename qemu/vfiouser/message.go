package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Command is a message number, vfio-user "Commands".
type Command uint16

// Commands that this server handles. It answers others with ENOSYS, because it never offered the
// capabilities behind them.
const (
	Version       Command = 1
	DMAMap        Command = 2
	DMAUnmap      Command = 3
	GetInfo       Command = 4
	GetRegionInfo Command = 5
	GetIRQInfo    Command = 7
	SetIRQs       Command = 8
	RegionRead    Command = 9
	RegionWrite   Command = 10
	Reset         Command = 13
)

var commandNames = map[Command]string{
	Version: "VERSION", DMAMap: "DMA_MAP", DMAUnmap: "DMA_UNMAP", GetInfo: "DEVICE_GET_INFO",
	GetRegionInfo: "DEVICE_GET_REGION_INFO", GetIRQInfo: "DEVICE_GET_IRQ_INFO", SetIRQs: "DEVICE_SET_IRQS",
	RegionRead: "REGION_READ", RegionWrite: "REGION_WRITE", Reset: "DEVICE_RESET",
}

func (c Command) String() string {
	if s, ok := commandNames[c]; ok {
		return s
	}
	return fmt.Sprintf("command %d", uint16(c))
}

const (
	// HeaderSize is the length of a message's header in bytes.
	HeaderSize = 16
	// MaxTransfer is the largest number of bytes of a region that one message may read or write. It
	// must be at least a whole configuration space.
	MaxTransfer = 64 << 10
	// maxMessage is the largest size of a message with its header.
	maxMessage = HeaderSize + accessSize + MaxTransfer
	// MaxFDs is the largest number of descriptors of a message.
	MaxFDs = 8
)

// Flags of a message.
const (
	FlagReply   uint32 = 1 // type, in bits 0 to 3
	FlagNoReply uint32 = 1 << 4
	FlagError   uint32 = 1 << 5

	typeMask uint32 = 15
)

// Header precedes every message. The protocol uses the host's byte order; both ends share a machine
// and this code runs on little-endian hosts.
type Header struct {
	ID      uint16 // chosen by the sender, echoed in the reply
	Command Command
	Size    uint32 // bytes of the whole message
	Flags   uint32
	Errno   uint32 // of a reply with FlagError
}

// Append appends the HeaderSize bytes of the header.
func (h *Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, h.ID)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Command))
	b = binary.LittleEndian.AppendUint32(b, h.Size)
	b = binary.LittleEndian.AppendUint32(b, h.Flags)
	return binary.LittleEndian.AppendUint32(b, h.Errno)
}

// ParseHeader parses a header. After an error the connection must be closed.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < HeaderSize {
		return h, short("header", b, HeaderSize)
	}
	le := binary.LittleEndian
	h = Header{ID: le.Uint16(b), Command: Command(le.Uint16(b[2:])), Size: le.Uint32(b[4:]), Flags: le.Uint32(b[8:]), Errno: le.Uint32(b[12:])}
	if h.Size < HeaderSize || h.Size > maxMessage {
		return h, fmt.Errorf("vfio-user %v: a message of %d bytes, want %d to %d", h.Command, h.Size, HeaderSize, maxMessage)
	}
	if t := h.Flags & typeMask; t > FlagReply {
		return h, fmt.Errorf("vfio-user %v: message type %d, want 0 or 1", h.Command, t)
	}
	return h, nil
}

func short(what string, b []byte, want int) error {
	return fmt.Errorf("vfio-user %s: %d bytes, want %d", what, len(b), want)
}

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
