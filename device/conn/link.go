package conn

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// Datagrams between two functions share connections, called links (rof.Link). The sender's NIC
// makes them, one ordered and one not, each by a request to serviceUD. Its private data are the
// header fields that the datagrams are sent with:
//
//	traffic class 8 | hop limit 8
const linkPrivate = 2

// gsiNumber is the queue pair number in requests for links, which have no queue pair.
const gsiNumber = 1

// ConnectLinks requests the connections that links need.
func (s *Functions) ConnectLinks() {
	for l := s.cfg.Links.NextLink(); l != nil; l = s.cfg.Links.NextLink() {
		if f := s.byID[l.Function()]; f != nil {
			f.connectLink(l)
		}
	}
}

func (f *Function) connectLink(l *rof.Link) {
	k := l.Key()
	f.ask(Request{Kind: Connect, Connect: &cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: gsiNumber, Service: serviceUD, SGID: k.SGID, DGID: k.GID,
		MTU: f.set.cfg.MTU + headers, Ordered: k.Ordered, Private: []byte{k.TrafficClass, k.HopLimit},
	}}, func(now falcon.Time, a *Answer) {
		if a.Err != nil {
			l.Refused(now)
			return
		}
		f.conns[a.ID] = &connection{wired: true, link: l}
	})
}

// linkRequest handles a request for a link.
func (f *Function) linkRequest(o *cm.Output) {
	if len(o.Private) == linkPrivate {
		k := rof.LinkKey{GID: o.PeerGID, SGID: o.LocalGID, TrafficClass: o.Private[0], HopLimit: o.Private[1], Ordered: o.Ordered}
		l := f.verbs.Links.Accept(k, o.PeerFunction)
		if l != nil {
			f.conns[o.ID].link = l
			f.ask(Request{Kind: Accept, ID: o.ID, N: gsiNumber}, func(now falcon.Time, a *Answer) {
				if a.Err != nil && f.conns[o.ID] != nil {
					f.set.cfg.Log(now, slog.LevelWarn, "link not accepted", "function", f.Describe(), "err", a.Err)
					l.Refused(now)
					f.rejectReserved(o.ID)
				}
			})
			return
		}
	}
	f.rejectReserved(o.ID)
}

// linkEnded handles the end of an attempt, or of the connection that it made.
func (f *Function) linkEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	if o.Kind != cm.OutDisconnected {
		c.link.Refused(now)
	}
}
