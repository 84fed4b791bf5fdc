package device

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// resources is what the connection manager takes from the shard.
type resources struct{ s *Shard }

var _ cm.Resources = resources{}

func (r resources) AllocCID(fn uint32) (uint32, error) {
	return r.s.slots.alloc(fn, r.s.functionByNumber(fn).cidQuota())
}

func (r resources) FreeCID(cid uint32) {
	if c := r.s.slots.open(cid); c != nil && c.parting {
		c.conn.Abort(r.s.now, falcon.CloseLocal) // it never lasts as long
	}
	r.s.slots.release(cid)
}

func (r resources) ForgetSAs(host cm.HostID) {
	r.s.rxSAs.forgetPeer(host)
	r.s.txSAs.forgetPeer(host)
	r.s.plain.forgetKeys(host)
	r.s.rotation.next = 0 // it may have waited for this peer only
}

func (r resources) RxSA(host cm.HostID, tenant uint32) (cm.SA, error) {
	sa, err := r.s.rxSAs.get(saKey{host, tenant, cm.ClassFalcon})
	if err != nil {
		return cm.SA{}, err
	}
	return sa.sa, nil
}

func (s *Shard) newManager(rand io.Reader) error {
	c := cm.Config{
		Host: s.cfg.NIC.Host, MTU: s.cfg.RDMA.MTU + ulpHeaders, MaxListeners: driverListeners + reservedListeners,
		MaxPerFunction: maxSlots,         // cidQuota bounds what it uses, the backlog what it has not answered
		MaxPerPeer:     maxSlots * 3 / 4, // no peer takes the last ones
	}
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		s.peers[p.Host] = &peer{cfg: p, host: p.Host, underlay: p.Underlay}
		c.Peers = append(c.Peers, cm.Peer{Host: p.Host, Underlay: p.Underlay, Tenants: p.Tenants})
	}
	m, err := cm.New(c, resources{s}, rand)
	if err != nil {
		return err
	}
	s.cm = m
	return s.announce()
}

// announce tells the connection manager, and it the peers, which functions there
// are and which addresses their ports have.
func (s *Shard) announce() error {
	if err := s.cm.SetEndpoints(s.funcs.endpoints()); err != nil {
		return err
	}
	s.syncPorts()
	return s.cm.SetPorts(s.portAddresses())
}

func (s *Shard) functionByNumber(n uint32) *function { return s.funcs.byID[pfvf.ID(n)] }

// openConnection sets up what the connection managers agreed: the slot with
// its guard, the transmit SA, the transport connection, and the queue pair on
// top. What cannot be set up is disconnected again.
func (f *function) openConnection(now falcon.Time, p *cm.Params) {
	if err := f.tryOpen(now, p); err != nil {
		f.shard.log.line(now, slog.LevelWarn, "connection not opened", "function", f.describe(), "qp", p.QPN, "peer", p.Peer, "err", err)
		_ = f.shard.cm.Disconnect(now, uint32(f.ID), p.ID)
	}
}

func (f *function) tryOpen(now falcon.Time, p *cm.Params) error {
	s := f.shard
	info, c, to := f.conns[p.ID], s.slots.find(p.LocalCID), s.peers[p.Peer]
	local := p.Peer == s.cfg.NIC.Host
	switch {
	case f.verbs == nil || info == nil:
		return fmt.Errorf("the function was reset")
	case c == nil || c.conn != nil || c.loop != nil:
		return fmt.Errorf("connection identifier %#x is not free", p.LocalCID)
	case to == nil && !local:
		return fmt.Errorf("host %d is not a peer", p.Peer)
	}
	inner := underlay.Inner{Src: netip.AddrFrom16(p.LocalGID).Unmap(), Dst: netip.AddrFrom16(p.PeerGID).Unmap()}
	top, err := f.topOf(p, info, &inner)
	if err != nil {
		return err
	}
	if inner.Src.Is4() != inner.Dst.Is4() {
		return fmt.Errorf("%s and %s are not both IPv4 or both IPv6 addresses", inner.Src, inner.Dst)
	}
	if top.qp != nil && top.qp.Ordered() != p.Ordered {
		return fmt.Errorf("queue pair %#x does not have the ordering its peer has: make both with the same", p.QPN)
	}
	if top.qp != nil && top.qp.CompletesInError() != p.CompleteInError {
		return fmt.Errorf("queue pair %#x does not have the error mode its peer has: make both with the same", p.QPN)
	}
	if top.qp != nil {
		f.bind(p.ID, p.QPN)
		info.peerQPN = p.PeerQPN
		top.qp.LimitReads(p.PeerIRD)
	}
	c.credits = credit.New(f.Credits, s.connCredits)
	if local {
		if err := s.openLoopback(c, f, p, inner, top.user()); err != nil {
			return err
		}
		if err := top.openLoopback(now, c.loop, p); err != nil {
			c.loop.Close(now)
			return err
		}
		return nil
	}
	rx := s.rxSAs.current[saKey{p.Peer, p.Tenant, cm.ClassFalcon}]
	if rx == nil {
		return fmt.Errorf("the peer restarted while connecting")
	}
	tx, err := s.txSAs.get(p)
	if err != nil {
		return fmt.Errorf("transmit key: %w", err)
	}
	conn, err := s.falcon.Open(now, falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID,
		LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU,
		TxDataPSN: p.TxDataPSN, TxReqPSN: p.TxReqPSN, TxRSN: p.TxRSN,
		RxDataPSN: p.RxDataPSN, RxReqPSN: p.RxReqPSN, RxRSN: p.RxRSN,
		Credits: c.credits, User: top.user(), GiveUp: top.giveUp(),
	})
	if err != nil {
		return err
	}
	c.conn, c.tx, c.peer, c.fn, c.id = conn, tx, to, f, p.ID
	c.inner, c.flow = inner, pathOf(inner.Flow, p.RemoteCID)
	c.guard = psp.NewGuard(psp.GuardConfig{
		SPI: rx.sa.SPI, Previous: rx.previous, Generation: rx.generation, PCID: cookie(p.Tenant), AnyPCID: s.txSAs.direct,
		Margin: int64(s.cfg.PSP.ReplayMargin), RemoteTime: p.RemoteTime,
	})
	s.open[p.ID] = p.LocalCID
	if err := top.open(now, conn, p); err != nil {
		conn.Close(now)
		c.close()
		return err
	}
	return nil
}

// top is what sits on a connection: a queue pair, or a link that carries
// datagrams.
type top struct {
	qp   *rdma.QP
	link *rdma.Link
}

// topOf finds what the connection is for. The path that its driver asked for
// becomes that of the connection.
func (f *function) topOf(p *cm.Params, info *connection, inner *underlay.Inner) (top, error) {
	if l := info.link; l != nil {
		inner.Class, inner.TTL, inner.Flow = l.Key().TrafficClass, l.Key().HopLimit, l.FlowLabel()
		return top{link: l}, nil
	}
	if q := f.verbs.QP(p.QPN); q != nil {
		path := q.Path()
		inner.Class, inner.TTL, inner.Flow = path.TrafficClass, path.HopLimit, path.FlowLabel
		return top{qp: q}, nil
	}
	return top{}, fmt.Errorf("queue pair %#x is gone", p.QPN)
}

// pathOf is the path that a connection begins on: the driver's choice, else one of its own.
func pathOf(flowLabel, remoteCID uint32) uint32 {
	if flowLabel == 0 {
		return remoteCID
	}
	return (flowLabel * 0x9e3779b1) >> 16 // neighbouring labels, on paths far apart
}

func (t top) user() any {
	if t.link != nil {
		return t.link
	}
	return t.qp
}

func (t top) giveUp() falcon.Time {
	if t.link != nil {
		return 0
	}
	return t.qp.RetryTime()
}

func (t top) open(now falcon.Time, conn *falcon.Conn, p *cm.Params) error {
	if t.link != nil {
		t.link.Open(now, conn, p.LocalGID)
		return nil
	}
	return opened(p, t.qp.Connect(now, conn, p.PeerQPN, pathMTU(p), p.PeerGID))
}

func (t top) openLoopback(now falcon.Time, conn *rdma.Loopback, p *cm.Params) error {
	if t.link != nil {
		t.link.OpenLoopback(now, conn, p.LocalGID)
		return nil
	}
	return opened(p, t.qp.ConnectLoopback(now, conn, p.PeerQPN, pathMTU(p), p.PeerGID))
}

// pathMTU is what the connection's MTU leaves for data.
func pathMTU(p *cm.Params) int { return abi.PathMTUFor(p.MTU - ulpHeaders).Bytes() }

func opened(p *cm.Params, st abi.Status) error {
	if st != abi.StatusOK {
		return fmt.Errorf("queue pair %#x: %s", p.QPN, st)
	}
	return nil
}

// closeReason is the transport's word for the connection manager's.
func closeReason(r cm.Reason) falcon.CloseReason {
	switch r {
	case cm.ReasonNone, cm.ReasonLocal, cm.ReasonFunctionGone:
		return falcon.CloseLocal
	case cm.ReasonPeerRestarted: // with new keys
		return falcon.CloseKeys
	}
	return falcon.ClosePeer
}

// closeConnection ends a connection that the connection manager has closed:
// the queue pair flushes, the transport ends what it still has under way.
func (f *function) closeConnection(now falcon.Time, id uint32, why cm.Reason) {
	s := f.shard
	c := s.slots.find(s.open[id])
	delete(s.open, id)
	if c == nil || c.id != id {
		return // the transport went first
	}
	if l := c.loop; l != nil {
		switch u := l.Config().User.(type) {
		case *rdma.QP:
			if u.OwnsLoopback(l) {
				disconnected(now, u)
			}
		case *rdma.Link:
			if u.OwnsLoopback(l) {
				u.Disconnected(now)
			}
		}
		l.Close(now)
		c.close()
		return
	}
	conn := c.conn
	u, connected := conn.User().(*rdma.QP)
	if connected && parts(why) {
		switch {
		case !u.Owns(conn):
			u = nil
		case why == cm.ReasonLocal:
			disconnected(now, u)
			u = nil
		}
		s.part(now, c, u)
		return
	}
	if reason := closeReason(why); reason != falcon.CloseLocal {
		conn.Abort(now, reason)
	}
	switch u := conn.User().(type) {
	case *rdma.QP:
		if u.Owns(conn) {
			disconnected(now, u)
		}
	case *rdma.Link:
		if u.Owns(conn) {
			u.Disconnected(now)
		}
	}
	conn.Close(now)
	c.close()
}

// disconnected tells a queue pair that its connection ends.
func disconnected(now falcon.Time, q *rdma.QP) {
	if _, _, wired := q.Wired(); wired {
		q.PeerLeft(now)
		return
	}
	q.Disconnected(now)
}

// connClosed follows the transport: a connection that ended there, by an error
// or because its queue pair went, is disconnected for the peer as well.
func (s *Shard) connClosed(now falcon.Time, ev *falcon.Event) {
	c := s.slots.open(ev.Conn.LocalCID())
	if c == nil || c.conn != ev.Conn {
		return
	}
	f, id := c.fn, c.id
	if c.parting {
		c.close()
		return
	}
	if ev.Code != falcon.CmplAck {
		s.log.line(now, slog.LevelWarn, "connection lost", "function", f.describe(), "peer", c.peer.host, "reason", ev.Reason.String())
	}
	c.close()
	_ = s.cm.Disconnect(now, uint32(f.ID), id)
	s.drainManager(now)
}

// warnLongPath tells that congestion control holds a connection at a packet per round trip.
func (s *Shard) warnLongPath(now falcon.Time, conn *falcon.Conn) {
	if c := s.slots.open(conn.LocalCID()); c != nil && c.conn == conn {
		s.log.line(now, slog.LevelWarn, "slow path", "function", c.fn.describe(), "peer", c.peer.host, "why", longPathNote(conn.Info()))
	}
}

// disconnecting says whether a peer that can be reached has yet to confirm a
// disconnect.
func (s *Shard) disconnecting() bool {
	for _, c := range s.cm.Connections() {
		if p := s.peers[c.Peer]; c.State == cm.StateDreqSent && p != nil && p.up {
			return true
		}
	}
	return false
}
