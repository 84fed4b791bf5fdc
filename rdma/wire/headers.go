package wire

// Headers is the header sequence of one packet. Which extended headers are on the wire is
// decided by RBTH.Opcode; the others are ignored by Append and left zero by Parse.
type Headers struct {
	RBTH      RBTH
	XRC       XRCETH
	Datagram  DETH
	RETH      RETH
	Atomic    AtomicETH
	Mask      AtomicMaskETH
	AtomicAck AtomicAckETH
	SETH      SETH
	OETH      OETH
	STETH     STETH
	Imm       ImmDt
	Inv       IETH
}

// Append encodes the sequence behind b. A reserved opcode yields RBTH alone.
func (h *Headers) Append(b []byte) []byte {
	set := opcodes[h.RBTH.Opcode].Headers
	b = h.RBTH.Append(b)
	if set&HdrXRCETH != 0 {
		b = h.XRC.Append(b)
	}
	if set&HdrDETH != 0 {
		b = h.Datagram.Append(b)
	}
	if set&HdrRETH != 0 {
		b = h.RETH.Append(b)
	}
	if set&HdrAtomicETH != 0 {
		b = h.Atomic.Append(b)
	}
	if set&HdrAtomicMaskETH != 0 {
		b = h.Mask.Append(b)
	}
	if set&HdrAtomicAckETH != 0 {
		b = h.AtomicAck.Append(b)
	}
	if set&HdrSETH != 0 {
		b = h.SETH.Append(b)
	}
	if set&HdrOETH != 0 {
		b = h.OETH.Append(b)
	}
	if set&HdrSTETH != 0 {
		b = h.STETH.Append(b)
	}
	if set&HdrImmDt != 0 {
		b = h.Imm.Append(b)
	}
	if set&HdrIETH != 0 {
		b = h.Inv.Append(b)
	}
	return b
}

// Parse decodes the headers at the start of b into h and returns their length in bytes. The
// error is ErrShort, ErrVersion or ErrOpcode; h.RBTH is then valid only for ErrOpcode and for an
// ErrShort behind the base header.
func (h *Headers) Parse(b []byte) (int, error) {
	var err error
	*h = Headers{}
	if h.RBTH, err = ParseRBTH(b); err != nil {
		return 0, err
	}
	info := &opcodes[h.RBTH.Opcode]
	if info.Len == 0 {
		return 0, ErrOpcode
	}
	if len(b) < info.Len {
		return 0, ErrShort
	}
	b = b[RBTHLen:]
	set := info.Headers
	// The length was checked above, so the errors below cannot occur.
	if set&HdrXRCETH != 0 {
		h.XRC, _ = ParseXRCETH(b)
		b = b[XRCETHLen:]
	}
	if set&HdrDETH != 0 {
		h.Datagram, _ = ParseDETH(b)
		b = b[DETHLen:]
	}
	if set&HdrRETH != 0 {
		h.RETH, _ = ParseRETH(b)
		b = b[RETHLen:]
	}
	if set&HdrAtomicETH != 0 {
		h.Atomic, _ = ParseAtomicETH(b)
		b = b[AtomicETHLen:]
	}
	if set&HdrAtomicMaskETH != 0 {
		h.Mask, _ = ParseAtomicMaskETH(b)
		b = b[AtomicMaskETHLen:]
	}
	if set&HdrAtomicAckETH != 0 {
		h.AtomicAck, _ = ParseAtomicAckETH(b)
		b = b[AtomicAckETHLen:]
	}
	if set&HdrSETH != 0 {
		h.SETH, _ = ParseSETH(b)
		b = b[SETHLen:]
	}
	if set&HdrOETH != 0 {
		h.OETH, _ = ParseOETH(b)
		b = b[OETHLen:]
	}
	if set&HdrSTETH != 0 {
		h.STETH, _ = ParseSTETH(b)
		b = b[STETHLen:]
	}
	if set&HdrImmDt != 0 {
		h.Imm, _ = ParseImmDt(b)
		b = b[ImmDtLen:]
	}
	if set&HdrIETH != 0 {
		h.Inv, _ = ParseIETH(b)
	}
	return info.Len, nil
}
