package conn

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// Datagrams between two functions share connections, links (rof.Link). The
// NIC of the one that has something to send makes them, one ordered and one not, each by a request
// to serviceUD whose private data are the headers that datagrams travel under:
//
//	traffic class 8 | hop limit 8
const linkPrivate = 2

// gsiNumber stands for the queue pair in requests for links, which have none.
const gsiNumber = 1

// ConnectLinks asks for the connections that links want.
func (s *Functions) ConnectLinks(now falcon.Time) {
	for l := s.cfg.Links.NextLink(); l != nil; l = s.cfg.Links.NextLink() {
		if f := s.byID[l.Function()]; f != nil {
			f.connectLink(now, l)
			s.cfg.Manager.Run(now)
		}
	}
}

func (f *Function) connectLink(now falcon.Time, l *rof.Link) {
	k := l.Key()
	id, err := f.set.cfg.Manager.Connect(now, cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: gsiNumber, Service: serviceUD, SGID: f.GID(), DGID: k.GID,
		MTU: f.set.cfg.MTU + headers, Ordered: k.Ordered, Private: []byte{k.TrafficClass, k.HopLimit},
	})
	if err != nil {
		l.Refused(now)
		return
	}
	f.conns[id] = &connection{wired: true, link: l}
}

// linkRequest takes a request for a link.
func (f *Function) linkRequest(now falcon.Time, o *cm.Output) {
	if len(o.Private) == linkPrivate {
		l := f.verbs.Links.Accept(rof.LinkKey{GID: o.PeerGID, TrafficClass: o.Private[0], HopLimit: o.Private[1], Ordered: o.Ordered})
		if l != nil {
			f.conns[o.ID].link = l
			err := f.set.cfg.Manager.Accept(now, f.number(), o.ID, gsiNumber, 0, nil)
			if err == nil {
				return
			}
			f.set.cfg.Log(now, slog.LevelWarn, "link not accepted", "function", f.Describe(), "err", err)
			l.Refused(now)
		}
	}
	f.rejectReserved(now, o.ID)
}

// linkEnded is told how an attempt, or the connection it led to, ended.
func (f *Function) linkEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	if o.Kind != cm.OutDisconnected {
		c.link.Refused(now)
	}
}
