package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
)

// Request is the message number of the vhost-user protocol, "Front-end message
// types".
type Request uint32

// Messages that this back end handles, and some that it refuses without disconnecting because it
// never offered the feature behind them.
const (
	GetFeatures         Request = 1
	SetFeatures         Request = 2
	SetOwner            Request = 3
	ResetOwner          Request = 4
	SetMemTable         Request = 5
	SetLogBase          Request = 6
	SetLogFD            Request = 7
	SetVringNum         Request = 8
	SetVringAddr        Request = 9
	SetVringBase        Request = 10
	GetVringBase        Request = 11
	SetVringKick        Request = 12
	SetVringCall        Request = 13
	SetVringErr         Request = 14
	GetProtocolFeatures Request = 15
	SetProtocolFeatures Request = 16
	GetQueueNum         Request = 17
	SetVringEnable      Request = 18
	NetSetMTU           Request = 20
	SetBackendReqFD     Request = 21
	GetConfig           Request = 24
	SetConfig           Request = 25
	GetMaxMemSlots      Request = 36
	AddMemReg           Request = 37
	RemMemReg           Request = 38

	// lastRequest is the highest message number that is accepted: that of QEMU 11's protocol plus
	// some room for newer ones. A higher number means that the stream is garbage.
	lastRequest Request = 63
)

var requestNames = map[Request]string{
	GetFeatures: "GET_FEATURES", SetFeatures: "SET_FEATURES", SetOwner: "SET_OWNER", ResetOwner: "RESET_OWNER",
	SetMemTable: "SET_MEM_TABLE", SetLogBase: "SET_LOG_BASE", SetLogFD: "SET_LOG_FD", SetVringNum: "SET_VRING_NUM",
	SetVringAddr: "SET_VRING_ADDR", SetVringBase: "SET_VRING_BASE", GetVringBase: "GET_VRING_BASE",
	SetVringKick: "SET_VRING_KICK", SetVringCall: "SET_VRING_CALL", SetVringErr: "SET_VRING_ERR",
	GetProtocolFeatures: "GET_PROTOCOL_FEATURES", SetProtocolFeatures: "SET_PROTOCOL_FEATURES",
	GetQueueNum: "GET_QUEUE_NUM", NetSetMTU: "NET_SET_MTU", SetBackendReqFD: "SET_BACKEND_REQ_FD", SetVringEnable: "SET_VRING_ENABLE", GetConfig: "GET_CONFIG", SetConfig: "SET_CONFIG",
	GetMaxMemSlots: "GET_MAX_MEM_SLOTS", AddMemReg: "ADD_MEM_REG", RemMemReg: "REM_MEM_REG",
}

func (r Request) String() string {
	if s, ok := requestNames[r]; ok {
		return s
	}
	return fmt.Sprintf("request %d", uint32(r))
}

// Feature bits (virtio and vhost-user).
const (
	FeatureProtocol uint64 = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	FeatureVersion1 uint64 = 1 << 32 // VIRTIO_F_VERSION_1
	FeaturePacked   uint64 = 1 << 34 // VIRTIO_F_RING_PACKED
)

// Protocol feature bits.
const (
	ProtocolMQ                uint64 = 1 << 0
	ProtocolReplyAck          uint64 = 1 << 3
	ProtocolNetMTU            uint64 = 1 << 4
	ProtocolBackendReq        uint64 = 1 << 5 // the socket stays unused, but User Mode Linux requires it
	ProtocolConfig            uint64 = 1 << 9 // QEMU's vsock device refuses to start without it
	ProtocolConfigureMemSlots uint64 = 1 << 15
)

const (
	// HeaderSize is the size of request, flags and size, four bytes each.
	HeaderSize = 12
	// maxPayload is the largest payload of a message. The largest valid payload is a memory table
	// of eight regions or a 256-byte configuration space.
	maxPayload = 4096
	// maxFDs is the largest number of descriptors of a message. A memory table of
	// VHOST_MEMORY_BASELINE_NREGIONS regions needs 8.
	maxFDs = 16

	// FlagVersion is the protocol version in bits 0 and 1.
	FlagVersion uint32 = 1
	// FlagReply marks a reply.
	FlagReply uint32 = 1 << 2
	// FlagNeedReply asks for a reply to a message that has none of its own.
	FlagNeedReply uint32 = 1 << 3
	versionMask   uint32 = 3
)

// Header precedes every message. The protocol uses the host's byte order; both
// ends share a machine and this code runs on little-endian hosts.
type Header struct {
	Request Request
	Flags   uint32
	Size    uint32 // bytes of payload that follow
}

// Append appends the 12 bytes of the header.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Request))
	b = binary.LittleEndian.AppendUint32(b, h.Flags)
	return binary.LittleEndian.AppendUint32(b, h.Size)
}

// ParseHeader parses a header. It rejects values that no correct front end sends.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("vhost-user header of %d bytes, want %d", len(b), HeaderSize)
	}
	h := Header{
		Request: Request(binary.LittleEndian.Uint32(b)),
		Flags:   binary.LittleEndian.Uint32(b[4:]),
		Size:    binary.LittleEndian.Uint32(b[8:]),
	}
	switch {
	case h.Flags&versionMask != FlagVersion:
		return h, fmt.Errorf("vhost-user %v has protocol version %d, want %d", h.Request, h.Flags&versionMask, FlagVersion)
	case h.Request == 0 || h.Request > lastRequest:
		return h, fmt.Errorf("vhost-user %v is outside the protocol", h.Request)
	case h.Size > maxPayload:
		return h, fmt.Errorf("vhost-user %v carries %d bytes, the limit is %d", h.Request, h.Size, maxPayload)
	}
	return h, nil
}

// Region describes one memory region, in bytes: its guest-physical address, its size, its virtual
// address in the front end and its offset in the descriptor's file.
type Region struct {
	GPA, Size, User, Offset uint64
}

// RegionSize is the encoded size of a Region.
const RegionSize = 32

// Append appends the 32 bytes of the region.
func (r Region) Append(b []byte) []byte {
	for _, v := range [4]uint64{r.GPA, r.Size, r.User, r.Offset} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func parseRegion(b []byte) Region {
	le := binary.LittleEndian
	return Region{GPA: le.Uint64(b), Size: le.Uint64(b[8:]), User: le.Uint64(b[16:]), Offset: le.Uint64(b[24:])}
}

// AppendMemTable appends the payload of SET_MEM_TABLE.
func AppendMemTable(b []byte, rs []Region) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(rs)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, r := range rs {
		b = r.Append(b)
	}
	return b
}

// ParseMemTable parses the payload of SET_MEM_TABLE.
func ParseMemTable(b []byte) ([]Region, error) {
	if len(b) < 8 {
		return nil, fmt.Errorf("memory table of %d bytes, want at least 8", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	// A front end may send a table of fixed size with unused entries at the end.
	if n > maxFDs || uint32(len(b)-8)/RegionSize < n {
		return nil, fmt.Errorf("memory table of %d bytes claims %d regions", len(b), n)
	}
	rs := make([]Region, n)
	for i := range rs {
		rs[i] = parseRegion(b[8+i*RegionSize:])
	}
	return rs, nil
}

// VringAddr is the payload of SET_VRING_ADDR. The addresses are virtual addresses of the front end,
// inside the memory regions.
type VringAddr struct {
	Index, Flags           uint32
	Desc, Used, Avail, Log uint64
}

// VringAddrSize is the encoded size of a VringAddr.
const VringAddrSize = 40

// Append appends the 40 bytes of the ring addresses.
func (v VringAddr) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, v.Index)
	b = binary.LittleEndian.AppendUint32(b, v.Flags)
	for _, x := range [4]uint64{v.Desc, v.Used, v.Avail, v.Log} {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// ParseVringAddr parses the payload of SET_VRING_ADDR.
func ParseVringAddr(b []byte) (VringAddr, error) {
	if len(b) < VringAddrSize {
		return VringAddr{}, fmt.Errorf("ring addresses of %d bytes, want %d", len(b), VringAddrSize)
	}
	le := binary.LittleEndian
	return VringAddr{
		Index: le.Uint32(b), Flags: le.Uint32(b[4:]),
		Desc: le.Uint64(b[8:]), Used: le.Uint64(b[16:]), Avail: le.Uint64(b[24:]), Log: le.Uint64(b[32:]),
	}, nil
}

// VringState is the payload of SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE and
// SET_VRING_ENABLE.
type VringState struct{ Index, Num uint32 }

// Append appends the 8 bytes of the ring state.
func (v VringState) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, v.Index)
	return binary.LittleEndian.AppendUint32(b, v.Num)
}

// ParseVringState parses a ring state.
func ParseVringState(b []byte) (VringState, error) {
	if len(b) < 8 {
		return VringState{}, fmt.Errorf("ring state of %d bytes, want 8", len(b))
	}
	return VringState{Index: binary.LittleEndian.Uint32(b), Num: binary.LittleEndian.Uint32(b[4:])}, nil
}

func parseU64(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("payload of %d bytes, want 8", len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

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
