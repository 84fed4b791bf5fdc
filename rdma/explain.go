package rdma

import (
	"fmt"

	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Explain says for people whose an RDMA packet is that user, of a connection, sent (out) or got:
// the queue pair, and if the packet is a request of that or the response to one, the work request.
// It is "" for a user that is none of this package. It allocates: captures call it, the data path
// does not.
func Explain(user any, packet []byte, out bool) string {
	p, ok := user.(endpoint)
	if !ok {
		return ""
	}
	q, ok := p.(*QP)
	if !ok {
		return "datagrams"
	}
	text := fmt.Sprintf("QP %d", q.number)
	h, err := wire.ParseRBTH(packet)
	info := h.Opcode.Info()
	if err != nil || info == nil {
		return text
	}
	text += fmt.Sprintf(", %s, SN %d", info.Name, h.SN)
	if response := info.Kind == wire.KindPullData; response == out {
		return text // of the peer's work
	}
	for _, s := range q.req.segments {
		if s != nil && s.sn == h.SN {
			w := q.req.work(s.work)
			return text + fmt.Sprintf(", WQE %d (wr_id %#x), bytes %d to %d", w.index, w.wqe.WRID, s.offset, s.offset+s.length)
		}
	}
	return text
}
