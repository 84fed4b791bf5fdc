package rof

import (
	"fmt"

	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Explain returns a text about an RDMA packet that the connection sent (out) or received: the queue
// pair and, if the packet is one of its requests or the response to one, the work request. It
// allocates memory; captures call it, the data path does not.
func (c *Conn) Explain(packet []byte, out bool) string {
	if !c.given {
		return ""
	}
	text := fmt.Sprintf("QP %d", c.terms.QPN)
	h, err := wire.ParseRBTH(packet)
	info := h.Opcode.Info()
	if err != nil || info == nil {
		return text
	}
	text += fmt.Sprintf(", %s, SN %d", info.Name, h.SN)
	if response := info.Kind == wire.KindPullData; response == out {
		return text // it belongs to the peer's work
	}
	for _, s := range c.initiator.segments {
		if s != nil && s.sn == h.SN {
			return text + fmt.Sprintf(", WQE %d (wr_id %#x), bytes %d to %d", s.r.Index, s.r.WQE.WRID, s.offset, s.offset+s.length)
		}
	}
	return text
}

// Explain returns a text about a packet of the connection.
func (c *Datagrams) Explain([]byte, bool) string { return "datagrams" }
