package conn

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
)

// Decide carries out a decision of the connection manager for a function. It ignores a decision if
// the function was reset meanwhile: then its connections are closed already, and the manager will learn
// of the reset.
func (s *Connector) Decide(now falcon.Time, d *Decision) {
	defer s.survive(now, d)
	f := s.byID[d.Function]
	if f == nil || f.epoch != d.Epoch || f.epoch == 0 {
		if d.Keys != nil {
			d.Keys.Release()
		}
		return
	}
	c := f.conns[d.ID]
	switch {
	case d.Kind == cm.OutOpen:
		f.open(now, d)
	case d.Kind == cm.OutClose:
		s.cfg.Table.Close(now, d.ID, d.Reason)
	case d.Kind == cm.OutRequest:
		f.request(&d.Output)
	case c == nil: // rejected
	case c.wired:
		f.reservedOutput(now, &d.Output, c)
	default:
		f.notify(&d.Output, c)
	}
}

// survive is deferred around the handling of a decision. If that panics because of another NIC's
// connection, that NIC loses its link, keys and connections, and this one goes on: no peer can end
// it by what it sends. It does not log the decision, which may contain keys.
func (s *Connector) survive(now falcon.Time, d *Decision) {
	v := recover()
	if v == nil {
		return
	}
	if d.Peer == cm.Self { // another function of this NIC
		panic(v)
	}
	s.cfg.Log(now, slog.LevelError, "fault in the program: the link to a peer and its connections end; please report this line",
		"peer", d.Peer, "handling", d.Kind.String(), "panic", v, "stack", string(debug.Stack()))
	if d.Keys != nil {
		d.Keys.Release()
	}
	s.cfg.Manager.Ask(Request{Kind: PeerFault, Function: d.Function, N: uint32(d.Peer)})
}

// request handles another function's request for a connection.
func (f *Connections) request(o *cm.Output) {
	switch {
	case !f.LinkUp:
		f.tell(Request{Kind: Reject, ID: o.ID})
	case o.Service >= firstReserved:
		f.reservedRequest(o)
	case f.driver.Behind():
		f.tell(Request{Kind: Reject, ID: o.ID})
	default:
		f.conns[o.ID] = &connection{ordered: o.Ordered, inError: o.CompleteInError}
		f.driver.Notify(&abi.AsyncEvent{
			Type: abi.EventConnectRequest, Number: o.ID, PeerQPN: o.PeerQPN, Service: o.Service, SrcGID: o.PeerGID,
		}, string(o.Private))
	}
}

// reservedRequest handles a request that a NIC makes for itself.
func (f *Connections) reservedRequest(o *cm.Output) {
	f.conns[o.ID] = &connection{wired: true, peerQPN: o.PeerQPN}
	switch o.Service {
	case serviceWire:
		f.wireRequest(o)
	case serviceUD:
		f.linkRequest(o)
	default:
		f.rejectReserved(o.ID)
	}
}

// reservedOutput handles an output for a connection that a NIC made for itself.
func (f *Connections) reservedOutput(now falcon.Time, o *cm.Output, c *connection) {
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

// notify sends the driver an event about one of its connections.
func (f *Connections) notify(o *cm.Output, c *connection) {
	e := abi.AsyncEvent{Number: o.ID, PeerQPN: o.PeerQPN, Status: uint32(reasonStatus(o.Reason))}
	switch o.Kind {
	case cm.OutEstablished:
		e.Type, e.Status, e.PeerQPN = abi.EventEstablished, 0, c.peerQPN
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

// open opens a connection that the connection managers agreed on. If that fails, it disconnects it.
func (f *Connections) open(now falcon.Time, d *Decision) {
	p := d.Params
	if err := f.tryOpen(now, d); err != nil {
		if d.Keys != nil {
			d.Keys.Release()
		}
		f.connector.cfg.Log(now, slog.LevelWarn, "connection not opened", "function", f.Describe(), "qp", p.QPN, "peer", p.PeerName, "err", err)
		f.tell(Request{Kind: Disconnect, ID: p.ID})
	}
}

func (f *Connections) tryOpen(now falcon.Time, d *Decision) error {
	p := d.Params
	c := f.conns[p.ID]
	if c == nil || c.over {
		return fmt.Errorf("it was given up")
	}
	o := &Opening{Params: p, Owner: &f.Owner, Underlay: d.Underlay, Receiving: d.Keys}
	o.Inner = underlay.Inner{Src: netip.AddrFrom16(p.LocalGID).Unmap(), Dst: netip.AddrFrom16(p.PeerGID).Unmap()}
	if o.Inner.Src.Is4() != o.Inner.Dst.Is4() {
		return fmt.Errorf("%s and %s are not both IPv4 or both IPv6 addresses", o.Inner.Src, o.Inner.Dst)
	}
	if c.link != nil {
		useLink(o, c.link)
	} else if err := f.useQP(o, c); err != nil {
		return err
	}
	return f.connector.cfg.Table.Open(now, o)
}

// useLink assigns the connection to a link. It takes over the header fields of the link's
// datagrams.
func useLink(o *Opening, l *rof.Link) {
	o.User = &linkUser{link: l}
	o.Inner.Class, o.Inner.TTL, o.Inner.Flow = l.Key().TrafficClass, l.Key().HopLimit, l.FlowLabel()
}

// useQP assigns the connection to a queue pair. It takes over the path settings of the queue pair.
func (f *Connections) useQP(o *Opening, c *connection) error {
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
	o.User = &qpUser{qp: q, rdma: f.connector.cfg.RDMA}
	o.Inner.Class, o.Inner.TTL, o.Inner.Flow = path.TrafficClass, path.HopLimit, path.FlowLabel
	return nil
}
