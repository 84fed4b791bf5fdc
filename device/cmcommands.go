package device

import (
	"errors"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// ulpHeaders is the most that RDMA headers take, in front of data, of a Falcon
// packet's ULP part.
const ulpHeaders = wire.MaxDataHeaderLen

// CMListen implements abi.ConnectionHandler.
func (c *commands) CMListen(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusDenied
	}
	return cmStatus(c.f.shard.cm.Listen(uint32(c.f.ID), service))
}

// CMUnlisten implements abi.ConnectionHandler.
func (c *commands) CMUnlisten(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusNotFound
	}
	return cmStatus(c.f.shard.cm.Unlisten(uint32(c.f.ID), service))
}

// CMConnect implements abi.ConnectionHandler.
func (c *commands) CMConnect(p *abi.CMConnect) (uint32, abi.Status) { return c.f.connect(c.now, p) }

// CMAccept implements abi.ConnectionHandler.
func (c *commands) CMAccept(p *abi.CMAccept) abi.Status { return c.f.accept(c.now, p) }

// CMReject implements abi.ConnectionHandler.
func (c *commands) CMReject(p *abi.CMReject) abi.Status {
	f := c.f
	if info := f.conns[p.CMID]; info != nil && info.wired {
		return abi.StatusNotFound // none of the driver's
	}
	priv, st := f.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	if st = cmStatus(f.shard.cm.Reject(c.now, uint32(f.ID), p.CMID, p.Reason, priv)); st == abi.StatusOK {
		f.forget(p.CMID)
	}
	return st
}

// CMDisconnect implements abi.ConnectionHandler.
func (c *commands) CMDisconnect(cmid uint32) abi.Status {
	if info := c.f.conns[cmid]; info != nil && info.wired {
		return abi.StatusNotFound // none of the driver's
	}
	return c.f.disconnect(c.now, cmid)
}

func (f *function) connect(now falcon.Time, c *abi.CMConnect) (uint32, abi.Status) {
	q := f.verbs.QP(c.QPN)
	switch {
	case q == nil:
		return 0, abi.StatusNotFound
	case c.Service >= firstReserved:
		return 0, abi.StatusDenied
	case q.State() != abi.QPStateInit || f.pending(c.QPN):
		return 0, abi.StatusBadState
	case !f.LinkUp:
		return 0, abi.StatusUnreachable
	}
	priv, st := f.private(c.Priv, c.PrivLen)
	if st != abi.StatusOK {
		return 0, st
	}
	mtu := f.shard.cfg.RDMA.MTU
	if q.PathMTU() != 0 {
		mtu = min(mtu, q.PathMTU())
	}
	id, err := f.shard.cm.Connect(now, cm.ConnectRequest{
		Function: uint32(f.ID), Tenant: f.Tenant, QPN: c.QPN, Service: c.Service,
		SGID: f.GID(), DGID: c.DGID, MTU: mtu + ulpHeaders, Ordered: q.Ordered(), IRD: q.IRD(), Private: priv,
		CompleteInError: q.CompletesInError(),
	})
	if err != nil {
		return 0, cmStatus(err)
	}
	f.conns[id] = &connection{}
	f.bind(id, c.QPN)
	return id, abi.StatusOK
}

func (f *function) accept(now falcon.Time, c *abi.CMAccept) abi.Status {
	q := f.verbs.QP(c.QPN)
	switch {
	case q == nil:
		return abi.StatusNotFound
	case q.State() != abi.QPStateInit || f.pending(c.QPN):
		return abi.StatusBadState
	}
	priv, st := f.private(c.Priv, c.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	info := f.conns[c.CMID]
	if info == nil || info.wired {
		return abi.StatusNotFound
	}
	if info.ordered != q.Ordered() || info.inError != q.CompletesInError() { // it would not open (tryOpen)
		if f.shard.cm.Reject(now, uint32(f.ID), c.CMID, uint32(abi.StatusInvalidArgument), nil) == nil {
			f.forget(c.CMID)
		}
		return abi.StatusInvalidArgument
	}
	if st := cmStatus(f.shard.cm.Accept(now, uint32(f.ID), c.CMID, c.QPN, q.IRD(), priv)); st != abi.StatusOK {
		return st
	}
	f.bind(c.CMID, c.QPN)
	return abi.StatusOK
}

// disconnect ends a connection in order. Asked a second time, or if there is no transport to drain,
// it does so at once.
func (f *function) disconnect(now falcon.Time, id uint32) abi.Status {
	if f.shard.table.Drain(now, &f.owner, id) {
		return abi.StatusOK
	}
	return cmStatus(f.shard.cm.Disconnect(now, uint32(f.ID), id))
}

// private copies a command's private data from guest memory.
func (f *function) private(addr uint64, n uint16) ([]byte, abi.Status) {
	if n > abi.PrivateMax {
		return nil, abi.StatusTooLarge
	}
	b := make([]byte, n)
	if err := f.binding.Memory.Read(addr, b); err != nil {
		return nil, abi.StatusMemoryFault
	}
	return b, abi.StatusOK
}

// endConnections disconnects what a queue pair had that is now reset,
// destroyed or in error by its driver's wish.
func (f *function) endConnections(now falcon.Time, qpn uint32) {
	f.unwire(qpn)
	for _, id := range f.ofQP[qpn] {
		_ = f.shard.cm.Disconnect(now, uint32(f.ID), id) // it may have ended by itself already
	}
}

// cmStatus gives the driver's view of a connection manager's error.
func cmStatus(err error) abi.Status {
	for _, e := range []struct {
		err error
		st  abi.Status
	}{
		{nil, abi.StatusOK},
		{cm.ErrNoRoute, abi.StatusUnreachable},
		{cm.ErrPeerDown, abi.StatusUnreachable},
		{cm.ErrNotLocal, abi.StatusDenied},
		{cm.ErrLimit, abi.StatusNoResources},
		{conn.ErrNoCID, abi.StatusNoResources},
		{cm.ErrNotFound, abi.StatusNotFound},
		{cm.ErrState, abi.StatusBadState},
		{cm.ErrInUse, abi.StatusAddressInUse},
		{cm.ErrInvalid, abi.StatusInvalidArgument},
	} {
		if errors.Is(err, e.err) {
			return e.st
		}
	}
	return abi.StatusNoResources
}

// reasonStatus gives the Status of an Unreachable event.
func reasonStatus(r cm.Reason) abi.Status {
	switch r {
	case cm.ReasonTimeout:
		return abi.StatusTimeout
	case cm.ReasonNoListener, cm.ReasonConsumer, cm.ReasonTenant, cm.ReasonGID:
		return abi.StatusRefused
	case cm.ReasonNoResources:
		return abi.StatusNoResources
	case cm.ReasonInvalid:
		return abi.StatusInvalidArgument
	case cm.ReasonCanceled, cm.ReasonFunctionGone, cm.ReasonLocal:
		return abi.StatusAborted
	}
	return abi.StatusUnreachable
}

// drainManager carries out what the connection manager decided.
func (s *Shard) drainManager(now falcon.Time) {
	for s.cm.Next(&s.cmOut) {
		o := s.cmOut
		if o.Kind == cm.OutSend && o.Peer == s.cfg.NIC.Host { // to another of our functions
			if err := s.cm.Receive(now, o.Peer, o.Msg); err != nil {
				s.log.line(now, slog.LevelWarn, "local connection message", "err", err)
			}
			continue
		}
		if o.Kind == cm.OutSend {
			s.toPeers = append(s.toPeers, thread.PeerMessage{Host: o.Peer, Data: o.Msg})
			s.underlay.Resolve(now, s.peers[o.Peer].underlay) // packets are likely to follow
			continue
		}
		if o.Kind >= cm.OutRekey {
			s.keyOutput(now, &o)
			continue
		}
		if f := s.functionByNumber(o.Function); f != nil {
			f.managerOutput(now, &o)
		}
	}
}

func (f *function) managerOutput(now falcon.Time, o *cm.Output) {
	event := abi.AsyncEvent{Number: o.ID, PeerQPN: o.PeerQPN}
	info := f.conns[o.ID]
	if info != nil && info.wired && o.Kind != cm.OutOpen && o.Kind != cm.OutClose {
		f.reservedOutput(now, o, info)
		return
	}
	switch o.Kind {
	case cm.OutRequest:
		if f.Lifecycle.State() != abi.StateReady || f.binding == nil || !f.LinkUp {
			_ = f.shard.cm.Reject(now, uint32(f.ID), o.ID, 0, nil)
			return
		}
		if o.Service >= firstReserved {
			f.reservedRequest(now, o)
			return
		}
		f.conns[o.ID] = &connection{ordered: o.Ordered, inError: o.CompleteInError}
		event.Type, event.Service, event.SrcGID = abi.EventConnectRequest, o.Service, o.PeerGID
	case cm.OutOpen:
		f.openConnection(now, o.Params)
		return
	case cm.OutClose:
		f.shard.table.Close(now, o.ID, o.Reason)
		return
	case cm.OutEstablished:
		if info != nil {
			event.PeerQPN = info.peerQPN
		}
		event.Type = abi.EventEstablished
	case cm.OutRejected:
		f.forget(o.ID)
		event.Type = abi.EventRejected
		event.Status = uint32(reasonStatus(o.Reason))
		if o.Reason == cm.ReasonConsumer {
			event.Status = o.Consumer
		}
	case cm.OutDisconnected:
		f.forget(o.ID)
		event.Type, event.Status = abi.EventDisconnected, uint32(reasonStatus(o.Reason))
	case cm.OutUnreachable:
		f.forget(o.ID)
		event.Type, event.Status = abi.EventUnreachable, uint32(reasonStatus(o.Reason))
	default:
		return
	}
	f.notify(&event, string(o.Private))
}
