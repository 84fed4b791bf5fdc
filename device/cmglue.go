package device

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// resources is what the connection manager takes from the shard.
type resources struct{ s *Shard }

var _ cm.Resources = resources{}

func (r resources) AllocCID(fn uint32) (uint32, error) {
	return r.s.cids.Alloc(fn)
}

func (r resources) FreeCID(cid uint32) { r.s.cids.Free(cid) }

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
		MaxPerFunction: conn.MaxSlots,         // cidQuota bounds what it uses, the backlog what it has not answered
		MaxPerPeer:     conn.MaxSlots * 3 / 4, // no peer takes the last ones
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
	info, to := f.conns[p.ID], s.peers[p.Peer]
	local := p.Peer == s.cfg.NIC.Host
	switch {
	case f.verbs == nil || info == nil:
		return fmt.Errorf("the function was reset")
	case to == nil && !local:
		return fmt.Errorf("host %d is not a peer", p.Peer)
	}
	o := &conn.Opening{Params: p, Owner: &f.owner}
	o.Inner = underlay.Inner{Src: netip.AddrFrom16(p.LocalGID).Unmap(), Dst: netip.AddrFrom16(p.PeerGID).Unmap()}
	if !local {
		o.Underlay = to.underlay
	}
	if err := f.useOf(o, info); err != nil {
		return err
	}
	if o.Inner.Src.Is4() != o.Inner.Dst.Is4() {
		return fmt.Errorf("%s and %s are not both IPv4 or both IPv6 addresses", o.Inner.Src, o.Inner.Dst)
	}
	if q := o.User.QP; q != nil {
		switch {
		case q.Ordered() != p.Ordered:
			return fmt.Errorf("queue pair %#x does not have the ordering its peer has: make both with the same", p.QPN)
		case q.CompletesInError() != p.CompleteInError:
			return fmt.Errorf("queue pair %#x does not have the error mode its peer has: make both with the same", p.QPN)
		}
		f.bind(p.ID, p.QPN)
		info.peerQPN = p.PeerQPN
		q.LimitReads(p.PeerIRD)
	}
	return s.table.Open(now, o)
}

// useOf finds what the connection is for. The path that its driver asked for becomes that of the
// connection.
func (f *function) useOf(o *conn.Opening, info *connection) error {
	if l := info.link; l != nil {
		o.User.Link = l
		o.Inner.Class, o.Inner.TTL, o.Inner.Flow = l.Key().TrafficClass, l.Key().HopLimit, l.FlowLabel()
		return nil
	}
	q := f.verbs.QP(o.Params.QPN)
	if q == nil {
		return fmt.Errorf("queue pair %#x is gone", o.Params.QPN)
	}
	o.User.QP = q
	path := q.Path()
	o.Inner.Class, o.Inner.TTL, o.Inner.Flow = path.TrafficClass, path.HopLimit, path.FlowLabel
	return nil
}

// connectionsEnded tells the connection manager, and with it the peer, of connections that ended on
// this side.
func (s *Shard) connectionsEnded(now falcon.Time) {
	for e, ok := s.table.NextEnded(); ok; e, ok = s.table.NextEnded() {
		if e.ID == 0 { // wireSelf's
			s.cids.Free(e.CID)
			continue
		}
		_ = s.cm.Disconnect(now, e.Function, e.ID)
		s.drainManager(now)
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
