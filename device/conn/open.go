package conn

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Opening describes a connection that the connection managers have agreed on.
type Opening struct {
	Params   *cm.Params
	Owner    *Owner
	User     User
	Inner    underlay.Inner // inner header of packets that we send
	Underlay netip.Addr     // of the peer; unset: the peer is this NIC

	Receiving Receiving // keys that we issued to the peer; only with another NIC
}

// Open opens a connection: its slot, keys, transport end and user. If it fails it leaves nothing
// behind.
func (t *Table) Open(now falcon.Time, o *Opening) error {
	s := t.place(now, o.Params.LocalCID)
	if s == nil {
		return fmt.Errorf("connection identifier %#x is not free", o.Params.LocalCID)
	}
	var err error
	switch {
	case o.Underlay.IsValid():
		err = t.openSealed(now, s, o)
	case ShardOf(o.Params.RemoteCID) != t.cfg.Shard:
		err = t.openTransport(now, s, o)
	default:
		err = t.openLoopback(s, o)
	}
	if err != nil {
		return err
	}
	if o.Params.ID != 0 {
		t.byID[o.Params.ID] = s.CID
	}
	s.user = o.User
	if err := o.User.Connect(now, s.carrier(), o.Params); err != nil {
		s.close(now)
		delete(t.byID, o.Params.ID)
		return err
	}
	return nil
}

// openSealed opens a connection with another NIC.
func (t *Table) openSealed(now falcon.Time, s *Slot, o *Opening) error {
	keys, err := t.cfg.Keys.Protect(o.Params, o.Receiving)
	if err != nil {
		return err
	}
	if err := t.openTransport(now, s, o); err != nil {
		keys.Release()
		return err
	}
	s.Keys = keys
	return nil
}

// openTransport opens the transport's end of a connection, without keys. A connection between two
// shards of this NIC never gets keys: its packets are handed over in clear text.
func (t *Table) openTransport(now falcon.Time, s *Slot, o *Opening) error {
	p := o.Params
	credits := NewCredits(o.Owner.Credits, t.cfg.Credits)
	c, err := t.cfg.Transport.Open(now, falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID,
		LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU,
		TxDataPSN: p.TxDataPSN, TxReqPSN: p.TxReqPSN, TxRSN: p.TxRSN,
		RxDataPSN: p.RxDataPSN, RxReqPSN: p.RxReqPSN, RxRSN: p.RxRSN,
		Credits: credits, GiveUp: o.User.GiveUp(),
	})
	if err != nil {
		return err
	}
	*s = Slot{
		CID: p.LocalCID, ID: p.ID, Conn: c, Owner: o.Owner, Peer: p.Peer, Underlay: o.Underlay, Inner: o.Inner,
		Credits: credits, flow: FirstPath(o.Inner.Flow, p.RemoteCID),
	}
	return nil
}

// FirstPath returns the path that a connection starts on: derived from the driver's flow label if
// there is one, else from the remote CID.
func FirstPath(flowLabel, remoteCID uint32) uint32 {
	if flowLabel == 0 {
		return remoteCID
	}
	return (flowLabel * 0x9e3779b1) >> 16 // spreads neighbouring labels over distant paths
}

// openLoopback opens one end of a connection between two functions of this shard, or between two
// queue pairs of one function. It needs no keys and no transport: its traffic never leaves the
// shard.
func (t *Table) openLoopback(s *Slot, o *Opening) error {
	p := o.Params
	var credits *credit.Node
	if p.ID != 0 {
		credits = NewCredits(o.Owner.Credits, t.cfg.Credits)
	}
	l, err := t.cfg.Loopbacks.Open(falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID, LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU, Credits: credits,
	})
	if err != nil {
		return err
	}
	*s = Slot{CID: p.LocalCID, ID: p.ID, Loop: l, Owner: o.Owner, Peer: p.Peer, Inner: o.Inner, Credits: credits}
	return nil
}
