package device

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma"
)

// Datagrams between two functions share connections, links (rdma.Link). The
// NIC of the one that has something to send makes them, one ordered and one not, each by a request
// to serviceUD whose private data are the headers that datagrams travel under:
//
//	traffic class 8 | hop limit 8
const linkPrivate = 2

// gsiNumber stands for the queue pair in requests for links, which have none.
const gsiNumber = 1

// connectLinks asks for the connections that links want.
func (s *Shard) connectLinks(now falcon.Time) {
	for l := s.rdma.NextLink(); l != nil; l = s.rdma.NextLink() {
		if f := s.functionByNumber(l.Function().ID()); f != nil {
			f.connectLink(now, l)
			s.drainManager(now)
		}
	}
}

func (f *function) connectLink(now falcon.Time, l *rdma.Link) {
	k := l.Key()
	id, err := f.shard.cm.Connect(now, cm.ConnectRequest{
		Function: uint32(f.ID), Tenant: f.Tenant, QPN: gsiNumber, Service: serviceUD, SGID: f.GID(), DGID: k.GID,
		MTU: f.shard.cfg.RDMA.MTU + ulpHeaders, Ordered: k.Ordered, Private: []byte{k.TrafficClass, k.HopLimit},
	})
	if err != nil {
		l.Refused(now)
		return
	}
	f.conns[id] = &connection{wired: true, link: l}
}

// linkRequest takes a request for a link.
func (f *function) linkRequest(now falcon.Time, o *cm.Output) {
	if len(o.Private) == linkPrivate {
		l := f.verbs.AcceptLink(rdma.LinkKey{GID: o.PeerGID, TrafficClass: o.Private[0], HopLimit: o.Private[1], Ordered: o.Ordered})
		if l != nil {
			f.conns[o.ID].link = l
			err := f.shard.cm.Accept(now, uint32(f.ID), o.ID, gsiNumber, 0, nil)
			if err == nil {
				return
			}
			f.shard.log.line(now, slog.LevelWarn, "link not accepted", "function", f.describe(), "err", err)
			l.Refused(now)
		}
	}
	f.rejectReserved(now, o.ID)
}

// linkEnded is told how an attempt, or the connection it led to, ended.
func (f *function) linkEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	if o.Kind != cm.OutDisconnected {
		c.link.Refused(now)
	}
}
