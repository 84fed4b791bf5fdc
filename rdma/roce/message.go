package roce

import "github.com/falcon-vnic/vnic/rdma/roce/wire"

// maxMessage is the longest message in bytes (IBA: 2^31).
const maxMessage = 1 << 31

// message is the part of a message of several packets that has arrived.
type message struct {
	kind  partKind
	bytes uint64
	left  uint32 // WRITE: bytes still to come
	addr  uint64 // WRITE: address for the next data
	rkey  uint32
}

type partKind uint8

const (
	noMessage partKind = iota
	sending
	writing
)

// with returns the message with another packet added. ok is false if the packet does not fit the
// message (IBA §9.7.4.1.5, §9.7.4.1.6).
func (m message) with(op wire.Opcode, info *wire.Info, h *wire.Headers, n, segment int) (message, bool) {
	kind := writing
	if op <= wire.SendOnlyImm || op == wire.SendLastInv || op == wire.SendOnlyInv {
		kind = sending
	}
	switch {
	case info.First != (m.kind == noMessage), !info.First && m.kind != kind,
		!info.Last && n != segment, info.Last && (n > segment || n == 0 && !info.First):
		return m, false
	}
	if info.First {
		m = message{kind: kind, left: h.RETH.Length, addr: h.RETH.VA, rkey: h.RETH.RKey}
	}
	m.bytes += uint64(n)
	if kind == sending {
		return m, m.bytes <= maxMessage
	}
	if m.left > maxMessage || uint32(n) > m.left || info.Last != (uint32(n) == m.left) {
		return m, false
	}
	m.left -= uint32(n)
	m.addr += uint64(n)
	return m, true
}
