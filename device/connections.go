package device

import (
	"slices"

	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// connection is what a function knows of one of its connections.
type connection struct {
	qpn     uint32     // 0 until accepted
	peerQPN uint32     // once open
	ordered bool       // the peer's queue pair is strongly ordered, of one that is not accepted yet
	inError bool       // its requests complete in error, likewise
	wired   bool       // asked for by a NIC, not by a driver
	link    *rdma.Link // then: it carries datagrams
}

// cidQuota is how many connection identifiers a function may have. Each queue pair has one
// connection and may have ended another that the peer has not confirmed; an address handle has one
// for each ordering; and there are those that other functions open to it for datagrams.
func (f *function) cidQuota() int {
	return 2*f.limits.Objects[verbs.KindQP] + 2*f.limits.Objects[verbs.KindAH] + f.limits.Links
}

// bind makes a connection a queue pair's.
func (f *function) bind(id, qpn uint32) {
	c := f.conns[id]
	if c.qpn == qpn {
		return
	}
	f.unbind(id, c)
	c.qpn = qpn
	f.ofQP[qpn] = append(f.ofQP[qpn], id)
}

func (f *function) unbind(id uint32, c *connection) {
	list := slices.DeleteFunc(f.ofQP[c.qpn], func(other uint32) bool { return other == id })
	if len(list) == 0 {
		delete(f.ofQP, c.qpn)
		return
	}
	f.ofQP[c.qpn] = list
}

// forget drops a connection that has ended.
func (f *function) forget(id uint32) {
	if c := f.conns[id]; c != nil {
		f.unbind(id, c)
		delete(f.conns, id)
	}
}

// pending says whether a queue pair is already being connected, or still has a connection.
func (f *function) pending(qpn uint32) bool { return len(f.ofQP[qpn]) > 0 }
