package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// Handle handles one event of the carrier. After the queue pair has detached, most events are
// ignored.
func (c *Conn) Handle(now falcon.Time, ev *falcon.Event) {
	u := c.user
	if u == nil {
		switch ev.Kind { // the connection is closing
		case falcon.EvPush:
			c.carrier.NackPush(now, ev.RSN, falconwire.NackNRE, 0, uint8(synNotServing))
		case falcon.EvPull:
			c.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		}
		return
	}
	switch {
	case c.terms.Unreliable && ev.Kind == falcon.EvPush:
		c.target.takeUnreliable(now, ev)
		u.Settle(now)
		return
	case c.terms.Unreliable && ev.Kind == falcon.EvPull: // the peer's queue pair is of another service
		c.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	switch ev.Kind {
	case falcon.EvPush:
		c.target.handlePush(now, ev)
	case falcon.EvPull:
		c.target.handlePull(now, ev)
	case falcon.EvPushDone:
		c.initiator.pushDone(now, ev)
	case falcon.EvPullDone:
		c.initiator.pullDone(now, ev)
	case falcon.EvResponseDone:
		c.target.responseDone(ev.Tag)
	case falcon.EvRNR:
		c.initiator.peerNotReady(now, ev.Tag)
	case falcon.EvCredit:
		u.Unblocked(now)
	case falcon.EvClosed:
		c.letGo()
		u.Ended(now, completionStatus(falcon.CmplDeadConn, synNone), ev.Reason.String())
	}
	u.Settle(now)
}

// Fill writes the RDMA headers and data of one packet into dst; see falcon.ULP. It reads guest
// memory but changes no queue and writes no completion.
func (c *Conn) Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	switch {
	case c.user == nil:
		return 0, errGone
	case kind == falcon.TxnPullData:
		return c.target.fillResponse(tag, dst)
	}
	return c.initiator.fillRequest(tag, dst)
}
