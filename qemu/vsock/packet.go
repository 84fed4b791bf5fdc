package vsock

import (
	"encoding/binary"
	"fmt"
)

// HeaderSize is the size of a packet header in bytes, Virtio §5.10.6.
const HeaderSize = 44

// HostCID is the context ID of the host, Virtio §5.10.4.
const HostCID = 2

// Type is the socket type of a packet.
type Type uint16

// TypeStream is the only supported type.
const TypeStream Type = 1

// Op is the operation of a packet.
type Op uint16

// Operations, Virtio §5.10.6.
const (
	OpInvalid Op = iota
	OpRequest
	OpResponse
	OpReset
	OpShutdown
	OpReadWrite
	OpCreditUpdate
	OpCreditRequest
)

func (o Op) String() string {
	names := [...]string{"INVALID", "REQUEST", "RESPONSE", "RST", "SHUTDOWN", "RW", "CREDIT_UPDATE", "CREDIT_REQUEST"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("op %d", uint16(o))
}

// Flags of OpShutdown.
const (
	ShutdownReceive uint32 = 1 // the sender receives no more
	ShutdownSend    uint32 = 2 // the sender sends no more
	shutdownBoth           = ShutdownReceive | ShutdownSend
)

// Header is the packet header. BufAlloc is the size of the sender's receive buffer. FwdCnt is the
// number of bytes that the sender has read from that buffer, modulo 2^32.
type Header struct {
	SrcCID, DstCID   uint64
	SrcPort, DstPort uint32
	Len              uint32 // bytes of payload behind the header
	Type             Type
	Op               Op
	Flags            uint32
	BufAlloc         uint32
	FwdCnt           uint32
}

// Append appends the 44 bytes of the header.
func (h *Header) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, h.SrcCID)
	b = le.AppendUint64(b, h.DstCID)
	b = le.AppendUint32(b, h.SrcPort)
	b = le.AppendUint32(b, h.DstPort)
	b = le.AppendUint32(b, h.Len)
	b = le.AppendUint16(b, uint16(h.Type))
	b = le.AppendUint16(b, uint16(h.Op))
	b = le.AppendUint32(b, h.Flags)
	b = le.AppendUint32(b, h.BufAlloc)
	return le.AppendUint32(b, h.FwdCnt)
}

// ParseHeader parses a header.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("vsock packet of %d bytes, want at least %d", len(b), HeaderSize)
	}
	le := binary.LittleEndian
	return Header{
		SrcCID: le.Uint64(b), DstCID: le.Uint64(b[8:]),
		SrcPort: le.Uint32(b[16:]), DstPort: le.Uint32(b[20:]), Len: le.Uint32(b[24:]),
		Type: Type(le.Uint16(b[28:])), Op: Op(le.Uint16(b[30:])), Flags: le.Uint32(b[32:]),
		BufAlloc: le.Uint32(b[36:]), FwdCnt: le.Uint32(b[40:]),
	}, nil
}

// Addr is one end of a flow; it implements net.Addr.
type Addr struct{ CID, Port uint32 }

// Network returns "vsock".
func (Addr) Network() string { return "vsock" }

func (a Addr) String() string { return fmt.Sprintf("%d:%d", a.CID, a.Port) }

// flowKey identifies a flow between two context IDs by its ports.
type flowKey struct{ local, remote uint32 }
