package wire

import (
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// Headers is the header sequence of one packet. BTH.Opcode decides which extended headers are on
// the wire. Append ignores the others, and Parse leaves them zero.
type Headers struct {
	BTH       BTH
	XRC       XRCETH
	Datagram  DETH
	RETH      falcon.RETH
	Atomic    falcon.AtomicETH
	Mask      falcon.AtomicMaskETH
	AETH      AETH
	AtomicAck falcon.AtomicAckETH
	Imm       falcon.ImmDt
	Inv       falcon.IETH
}

// Append appends the encoded sequence to b. For a reserved opcode it appends only the BTH.
func (h *Headers) Append(b []byte) []byte {
	set := opcodes[h.BTH.Opcode].headers
	b = h.BTH.Append(b)
	if set&hdrXRCETH != 0 {
		b = h.XRC.Append(b)
	}
	if set&hdrDETH != 0 {
		b = h.Datagram.Append(b)
	}
	if set&hdrRETH != 0 {
		b = h.RETH.Append(b)
	}
	if set&hdrAtomicETH != 0 {
		b = h.Atomic.Append(b)
	}
	if set&hdrAtomicMaskETH != 0 {
		b = h.Mask.Append(b)
	}
	if set&hdrAETH != 0 {
		b = h.AETH.Append(b)
	}
	if set&hdrAtomicAckETH != 0 {
		b = h.AtomicAck.Append(b)
	}
	if set&hdrImmDt != 0 {
		b = h.Imm.Append(b)
	}
	if set&hdrIETH != 0 {
		b = h.Inv.Append(b)
	}
	return b
}

// Parse decodes the headers at the start of b into h and returns their length in bytes. The error
// is ErrShort, ErrVersion or ErrOpcode. With an error, h.BTH is valid only for ErrOpcode and for an
// ErrShort after the base header.
func (h *Headers) Parse(b []byte) (int, error) {
	var err error
	*h = Headers{}
	if h.BTH, err = ParseBTH(b); err != nil {
		return 0, err
	}
	info := &opcodes[h.BTH.Opcode]
	if info.Len == 0 {
		return 0, ErrOpcode
	}
	if len(b) < info.Len {
		return 0, ErrShort
	}
	b = b[BTHLen:]
	set := info.headers
	// The length was checked above, so the errors below cannot occur.
	if set&hdrXRCETH != 0 {
		h.XRC, _ = ParseXRCETH(b)
		b = b[XRCETHLen:]
	}
	if set&hdrDETH != 0 {
		h.Datagram, _ = ParseDETH(b)
		b = b[DETHLen:]
	}
	if set&hdrRETH != 0 {
		h.RETH, _ = falcon.ParseRETH(b)
		b = b[falcon.RETHLen:]
	}
	if set&hdrAtomicETH != 0 {
		h.Atomic, _ = falcon.ParseAtomicETH(b)
		b = b[falcon.AtomicETHLen:]
	}
	if set&hdrAtomicMaskETH != 0 {
		h.Mask, _ = falcon.ParseAtomicMaskETH(b)
		b = b[falcon.AtomicMaskETHLen:]
	}
	if set&hdrAETH != 0 {
		h.AETH, _ = ParseAETH(b)
		b = b[AETHLen:]
	}
	if set&hdrAtomicAckETH != 0 {
		h.AtomicAck, _ = falcon.ParseAtomicAckETH(b)
		b = b[falcon.AtomicAckETHLen:]
	}
	if set&hdrImmDt != 0 {
		h.Imm, _ = falcon.ParseImmDt(b)
		b = b[falcon.ImmDtLen:]
	}
	if set&hdrIETH != 0 {
		h.Inv, _ = falcon.ParseIETH(b)
	}
	return info.Len, nil
}

// Data returns the data of a transport packet without ICRC: what follows the headers of length n,
// without the pad. ok is false if the packet is too short or not a multiple of 4 bytes.
func (h *BTH) Data(packet []byte, n int) (data []byte, ok bool) {
	end := len(packet) - int(h.Pad)
	if end < n || len(packet)&3 != 0 {
		return nil, false
	}
	return packet[n:end], true
}
