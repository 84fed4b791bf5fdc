package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// onResync processes a Resync (Falcon §9.2.5): its PSN is acknowledged, and its RSN is skipped.
func (c *receiver) onResync(now Time, r *wire.Resync) wire.Drop {
	w, ack, rx := &c.dataRx, &c.dataBits.ack, &c.dataBits.rx
	if r.Original == wire.TypePullRequest {
		w, ack, rx = &c.reqRx, &c.reqBits, &c.reqBits
	}
	d := w.check(rx, r.PSN)
	switch d {
	case wire.DropNone:
	case wire.DropDuplicate:
		if bit(ack, r.PSN-w.base) {
			c.ackSoon()
			return d
		}
	case wire.DropBehindWindow:
		c.ackSoon()
		return d
	default:
		c.coalesce(now, wholePacket)
		return d
	}
	if r.Original == wire.TypePullData {
		c.pullDataGone(r.RSN, r.Code)
	} else if !c.skip(r.RSN, r.PSN, r.Original == wire.TypePushData) {
		c.queueNack(nackEntry{psn: r.PSN, code: wire.NackResource, request: r.Original == wire.TypePullRequest})
		return wire.DropResource
	}
	w.acknowledge(ack, rx, r.PSN)
	c.ackSoon()
	return d
}

// pullDataGone completes a pull whose response the target will not deliver.
func (c *receiver) pullDataGone(rsn uint32, code wire.ResyncCode) {
	t := c.pullOf(rsn)
	if t == nil {
		return
	}
	c.implicitAck(t)
	if code == wire.ResyncCID {
		c.complete(t, CmplTargetNackCID)
		return
	}
	c.complete(t, CmplRemoteErr)
}
