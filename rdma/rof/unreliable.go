package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// An unreliable connection over Falcon uses an ordered Falcon connection. Each push is
// acknowledged, even if it was dropped, so the requester is never told about the peer's queue pair.
// Packets are retransmitted from guest memory, so a send is done when Falcon no longer needs that
// memory.

// takeUnreliable handles a packet of the peer of an unreliable connection (IBA §9.8.2.2).
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
		t.class = classNone // the rest of the current message is lost
	}
}

// continues reports whether a packet begins a message or is the next one of the current message. If
// packets are missing, it first drops the current message.
func (t *target) continues(h *wire.Headers) bool {
	missing := h.RBTH.SN != t.expected
	t.expected = h.RBTH.SN + 1
	if h.RBTH.Opcode.Info().First || missing {
		t.class, t.bytes = classNone, 0
	}
	return h.RBTH.Opcode.Info().First || !missing
}

// placeUnreliable places the data of a packet, and completes the message that it ends. It returns
// false if the message is lost.
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
