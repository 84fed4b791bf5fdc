package iwarp

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
)

// A tape (package tape) may leave payload out: the data of WRITEs, SENDs and READ Responses. cutter finds it in what
// a peer sends; what this end sends is summed without it.

// headLen returns how many bytes of an ULPDU of n bytes are no payload. b begins with its control fields.
func headLen(b []byte, n int) int {
	switch op := wire.Opcode(b[1] & 0x0f); {
	case op == wire.OpWrite, op == wire.OpReadResponse:
		return min(wire.TaggedLen, n)
	case op >= wire.OpSend && op <= wire.OpSendSEInv:
		return min(wire.UntaggedLen, n)
	}
	return n
}

// sum adds the FPDU that seal has completed in b to the sums of what goes out.
func (c *Conn) sum(b []byte) {
	o := &c.out
	if !c.e.tape.Active() {
		return
	}
	u := b[wire.FPDUHeaderLen:]
	if o.markers {
		u = c.e.ulpdu[:]
	}
	u = u[:o.ulpdu]
	c.e.tape.OutPart(tape.Streams, u, headLen(u, len(u)), 0)
}

// newSTag returns an STag that is not 0. A tape that plays says which: where it has none, because events were
// left out, it says 0 however often it is asked.
func (e *Engine) newSTag() uint32 {
	n := uint32(0)
	for n == 0 {
		n = uint32(e.random.Uint64())
	}
	return uint32(e.tape.Number(tape.Random, uint64(n)))
}

// cutter follows what comes of a stream: a frame, then FPDUs.
type cutter struct {
	begun bool // the frame has come
	at    int  // bytes of the frame or FPDU that have come
	first [wire.FrameHeaderLen]byte
}

// next returns the length of the first piece of b, and how many bytes at its beginning are no payload.
func (c *cutter) next(b []byte) (n, head int) {
	need := wire.FPDUHeaderLen + 2 // the control fields of the ULPDU tell how long its header is
	if !c.begun {
		need = wire.FrameHeaderLen
	}
	if c.at < need {
		copy(c.first[c.at:need], b)
	}
	if n = len(b); c.at+n < need {
		c.at += n
		return n, n
	}
	total := wire.FrameHeaderLen + int(binary.BigEndian.Uint16(c.first[wire.FrameHeaderLen-2:]))
	head = total
	if c.begun {
		ulpdu := int(binary.BigEndian.Uint16(c.first[:]))
		total = wire.FPDULen(ulpdu)
		if head = total; ulpdu >= 2 {
			if own := headLen(c.first[wire.FPDUHeaderLen:], ulpdu); own < ulpdu {
				head = wire.FPDUHeaderLen + own
			}
		}
	}
	n = min(n, total-c.at)
	head = max(0, min(head-c.at, n))
	if c.at += n; c.at == total {
		c.at, c.begun = 0, true
	}
	return n, head
}
