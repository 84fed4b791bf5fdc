package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// An unreliable connection over Falcon is an ordered Falcon connection, of which it uses less than
// there is: each push is acknowledged, whatever became of it, so that the requester never hears of
// the peer's queue pair. Packets are sent again from guest memory, so a send is done when Falcon
// needs that no more.

// takeUnreliable takes a packet of the peer of an unreliable connection (IBA §9.8.2.2).
func (t *target) takeUnreliable(now falcon.Time, ev *falcon.Event) {
	h := &t.e.headers
	n, err := h.Parse(ev.Data)
	if err == nil && h.RBTH.DestQP != t.terms.QPN {
		t.account.CIDMismatches++ // RDMA over Falcon §6.9
		t.carrier.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
		return
	}
	t.carrier.AckPush(now, ev.RSN)
	if !t.user.Serving() {
		return
	}
	t.user.Heard()
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !t.addressed(h) || !t.continues(h) || !t.placeUnreliable(now, h, ev.RSN, data) {
		t.class = classNone // the message at hand is lost, and what is left of it
	}
}

// continues reports whether a packet begins a message, or is the next of the one at hand. It has
// first lost the one at hand where there is a gap.
func (t *target) continues(h *wire.Headers) bool {
	missing := h.RBTH.SN != t.expected
	t.expected = h.RBTH.SN + 1
	if h.RBTH.Opcode.Info().First || missing {
		t.class, t.bytes = classNone, 0
	}
	return h.RBTH.Opcode.Info().First || !missing
}

// placeUnreliable has the data of a packet placed, and completes the message that it ends. It
// reports false if the message is lost.
func (t *target) placeUnreliable(now falcon.Time, h *wire.Headers, rsn uint32, data []byte) bool {
	a := t.arrival(h, rsn, data)
	if a.Message = t.message; a.Spoiled || !t.legal(a) {
		return false
	}
	v := t.user.Place(now, &a.Packet, data)
	if v.Refusal != transport.Accepted || !t.user.Serving() {
		return false
	}
	t.took(a, h.RBTH.Opcode)
	t.class = a.class
	t.bytes += uint64(a.Length)
	if a.Last {
		t.class = classNone
		if a.TakesReceive() {
			t.message++
			t.user.Complete(now, &a.Packet, t.bytes, abi.WCSuccess)
		}
	}
	return true
}
