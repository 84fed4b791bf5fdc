package device

import (
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma"
)

// openLoopback sets up one end of a connection between two functions of this
// NIC, or two queue pairs of one. It takes a slot for its CID and what the
// capture wants to know, but has no guard, no keys and no transport connection:
// what it carries never leaves the shard.
func (s *Shard) openLoopback(c *slot, f *function, p *cm.Params, inner underlay.Inner, user any) error {
	l, err := s.rdma.OpenLoopback(falcon.ConnConfig{
		LocalCID: p.LocalCID, RemoteCID: p.RemoteCID, LocalFunction: p.Function, RemoteFunction: p.PeerFunction,
		Protocol: wire.ProtocolRDMA, Ordered: p.Ordered, MTU: p.MTU, Credits: c.credits, User: user,
	})
	if err != nil {
		return err
	}
	c.loop, c.fn, c.id, c.inner = l, f, p.ID, inner
	if p.ID != 0 {
		s.open[p.ID] = p.LocalCID
	}
	return nil
}

// drainLoopbacks is connClosed for connections inside the NIC: those that ended
// in the RDMA engine are disconnected for the other end as well.
func (s *Shard) drainLoopbacks(now falcon.Time) {
	for cid, ok := s.rdma.NextClosed(); ok; cid, ok = s.rdma.NextClosed() {
		c := s.slots.find(cid)
		if c == nil || c.loop == nil {
			continue // closeConnection was first
		}
		f, id := c.fn, c.id
		c.close()
		if id == 0 { // wireSelf's
			s.slots.release(cid)
			continue
		}
		_ = s.cm.Disconnect(now, uint32(f.ID), id)
		s.drainManager(now)
	}
}

// captureLoopbacks shows loopback connections' packets as they would be on the
// way to another NIC: inner IP, Falcon, RDMA. Nothing is ever lost here, so
// there are no acknowledgements, and the PSN is the RSN.
func (s *Shard) captureLoopbacks() {
	if !s.capture.wantClear {
		s.rdma.SetTap(nil)
		return
	}
	var b []byte
	s.rdma.SetTap(func(now falcon.Time, from *rdma.Loopback, kind falcon.TxnKind, rsn uint32, asked int, packet []byte) {
		cfg := from.Config()
		c := s.slots.find(cfg.LocalCID)
		if c == nil {
			return
		}
		h := wire.Header{CID: cfg.RemoteCID, Function: cfg.RemoteFunction, Protocol: cfg.Protocol, PSN: rsn, RSN: rsn}
		switch kind {
		case falcon.TxnPush:
			h.Type = wire.TypePushData
			b = c.inner.Append(b[:0], wire.PushDataLen+len(packet))
			b = (&wire.PushData{Header: h, RequestLength: uint16(len(packet))}).Append(b)
		case falcon.TxnPull:
			h.Type = wire.TypePullRequest
			b = c.inner.Append(b[:0], wire.PullRequestLen+len(packet))
			b = (&wire.PullRequest{Header: h, RequestLength: uint16(asked)}).Append(b)
		default:
			h.Type = wire.TypePullData
			b = c.inner.Append(b[:0], wire.PullDataLen+len(packet))
			b = h.Append(b)
		}
		b = append(b, packet...)
		s.captureInside(now, c, b, packet)
	})
}
