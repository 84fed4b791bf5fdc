package conn

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// Output carries out what the connection manager decided for a function. peer is the underlay
// address of the NIC at the other end, none for this one.
func (s *Functions) Output(now falcon.Time, o *cm.Output, peer netip.Addr) {
	f := s.byID[o.Function]
	if f == nil {
		return
	}
	c := f.conns[o.ID]
	switch {
	case o.Kind == cm.OutOpen:
		f.open(now, o.Params, peer)
	case o.Kind == cm.OutClose:
		s.cfg.Table.Close(now, o.ID, o.Reason)
	case o.Kind == cm.OutRequest:
		f.request(now, o)
	case c != nil && c.wired:
		f.reservedOutput(now, o, c)
	default:
		f.tell(o, c)
	}
}

// request takes another function's wish for a connection to this one.
func (f *Function) request(now falcon.Time, o *cm.Output) {
	switch {
	case f.verbs == nil || !f.LinkUp:
		_ = f.set.cfg.Manager.Reject(now, f.number(), o.ID, 0, nil)
	case o.Service >= firstReserved:
		f.reservedRequest(now, o)
	default:
		f.conns[o.ID] = &connection{ordered: o.Ordered, inError: o.CompleteInError}
		f.driver.Notify(&abi.AsyncEvent{
			Type: abi.EventConnectRequest, Number: o.ID, PeerQPN: o.PeerQPN, Service: o.Service, SrcGID: o.PeerGID,
		}, string(o.Private))
	}
}

// reservedRequest takes a request that a NIC makes for itself.
func (f *Function) reservedRequest(now falcon.Time, o *cm.Output) {
	f.conns[o.ID] = &connection{wired: true, peerQPN: o.PeerQPN}
	switch o.Service {
	case serviceWire:
		f.wireRequest(now, o)
	case serviceUD:
		f.linkRequest(now, o)
	default:
		f.rejectReserved(now, o.ID)
	}
}

// reservedOutput takes what becomes of a connection that a NIC asked for.
func (f *Function) reservedOutput(now falcon.Time, o *cm.Output, c *connection) {
	switch {
	case c.link != nil && o.Kind != cm.OutEstablished:
		f.linkEnded(now, o, c)
	case c.link != nil:
	case o.Kind == cm.OutEstablished:
		f.unwire(c.qpn)
	default:
		f.wireEnded(now, o, c)
	}
}

// tell tells the driver what became of one of its connections.
func (f *Function) tell(o *cm.Output, c *connection) {
	e := abi.AsyncEvent{Number: o.ID, PeerQPN: o.PeerQPN, Status: uint32(reasonStatus(o.Reason))}
	switch o.Kind {
	case cm.OutEstablished:
		e.Type, e.Status = abi.EventEstablished, 0
		if c != nil {
			e.PeerQPN = c.peerQPN
		}
	case cm.OutRejected:
		e.Type = abi.EventRejected
		if o.Reason == cm.ReasonConsumer {
			e.Status = o.Consumer
		}
	case cm.OutDisconnected:
		e.Type = abi.EventDisconnected
	case cm.OutUnreachable:
		e.Type = abi.EventUnreachable
	default:
		return
	}
	if o.Kind != cm.OutEstablished {
		f.forget(o.ID)
	}
	f.driver.Notify(&e, string(o.Private))
}

// open opens what the connection managers agreed. What cannot be opened is disconnected again.
func (f *Function) open(now falcon.Time, p *cm.Params, peer netip.Addr) {
	if err := f.tryOpen(now, p, peer); err != nil {
		f.set.cfg.Log(now, slog.LevelWarn, "connection not opened", "function", f.Describe(), "qp", p.QPN, "peer", p.Peer, "err", err)
		_ = f.set.cfg.Manager.Disconnect(now, f.number(), p.ID)
	}
}

func (f *Function) tryOpen(now falcon.Time, p *cm.Params, peer netip.Addr) error {
	c := f.conns[p.ID]
	if f.verbs == nil || c == nil {
		return fmt.Errorf("the function was reset")
	}
	o := &Opening{Params: p, Owner: &f.Owner, Underlay: peer}
	o.Inner = underlay.Inner{Src: netip.AddrFrom16(p.LocalGID).Unmap(), Dst: netip.AddrFrom16(p.PeerGID).Unmap()}
	if o.Inner.Src.Is4() != o.Inner.Dst.Is4() {
		return fmt.Errorf("%s and %s are not both IPv4 or both IPv6 addresses", o.Inner.Src, o.Inner.Dst)
	}
	if c.link != nil {
		f.useLink(o, c.link)
	} else if err := f.useQP(o, c); err != nil {
		return err
	}
	return f.set.cfg.Table.Open(now, o)
}

// useLink makes the connection a link's. The headers that its datagrams travel under become those of
// the connection.
func (f *Function) useLink(o *Opening, l *rof.Link) {
	o.User = &linkUser{link: l, rdma: f.set.cfg.RDMA}
	o.Inner.Class, o.Inner.TTL, o.Inner.Flow = l.Key().TrafficClass, l.Key().HopLimit, l.FlowLabel()
}

// useQP makes the connection a queue pair's. The path that its driver asked for becomes that of the
// connection.
func (f *Function) useQP(o *Opening, c *connection) error {
	p := o.Params
	q := f.verbs.QP(p.QPN)
	switch {
	case q == nil:
		return fmt.Errorf("queue pair %#x is gone", p.QPN)
	case q.Ordered() != p.Ordered:
		return fmt.Errorf("queue pair %#x does not have the ordering its peer has: make both with the same", p.QPN)
	case q.CompletesInError() != p.CompleteInError:
		return fmt.Errorf("queue pair %#x does not have the error mode its peer has: make both with the same", p.QPN)
	}
	f.bind(p.ID, p.QPN)
	c.peerQPN = p.PeerQPN
	q.LimitReads(p.PeerIRD)
	path := q.Path()
	o.User = &qpUser{qp: q, rdma: f.set.cfg.RDMA}
	o.Inner.Class, o.Inner.TTL, o.Inner.Flow = path.TrafficClass, path.HopLimit, path.FlowLabel
	return nil
}
