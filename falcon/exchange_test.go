package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestCountersOfAnExchange: both ends count a known exchange exactly: pushes and pulls of which one is lost, one is refused and
// one meets a receiver that is not ready (F65).
func TestCountersOfAnExchange(t *testing.T) {
	p := newPair(t)
	refused := false
	p.ulp[1].OnPush = func(now falcon.Time, ev *falcon.Event, key uint64) {
		switch {
		case key == 2:
			ev.Conn.NackPush(now, ev.RSN, wire.NackCIE, 0, 5)
		case key == 4 && !refused:
			refused = true
			ev.Conn.NackPush(now, ev.RSN, wire.NackRNR, 1, 0)
		default:
			ev.Conn.AckPush(now, ev.RSN)
		}
	}
	p.dropNth(0, wire.TypePushData, 3)
	p.push(p.a, 100, 1, 2, 3, 4, 5, 6)
	p.pull(p.a, 1000, 7, 8)
	p.run(100 * ms)
	// The early retransmission crosses the answer that was late: one duplicate. A push behind the one that is not ready gets the
	// same answer.
	initiator := falcon.Stats{
		PacketsReceived: 9, Drops: [wire.DropCount]uint64{wire.DropNone: 9},
		PacketsSent: 14, DataSent: 8, AcksSent: 1, AcksReceived: 3, ExtendedAcksReceived: 2, NacksReceived: 4,
		NackCodesReceived: [wire.NackCodes]uint64{wire.NackRNR: 3, wire.NackCIE: 1},
		ResyncsSent:       1, EarlyRetransmits: 1,
		Completions: [falcon.CompletionCodes]uint64{falcon.CmplAck: 7, falcon.CmplTargetNackCIE: 1},
		RUEEvents:   7, Conns: 1,
	}
	target := falcon.Stats{
		PacketsReceived: 13, Drops: [wire.DropCount]uint64{wire.DropNone: 12, wire.DropDuplicate: 1},
		PacketsSent: 9, DataSent: 2, AcksSent: 3, ExtendedAcksSent: 2, AcksReceived: 1, NacksSent: 4,
		NackCodesSent:   [wire.NackCodes]uint64{wire.NackRNR: 3, wire.NackCIE: 1},
		ResyncsReceived: 1, RUEEvents: 1, Conns: 1,
	}
	if got := *p.ae.Stats(); got != initiator {
		t.Errorf("initiator: %+v\nwant %+v", got, initiator)
	}
	if got := *p.be.Stats(); got != target {
		t.Errorf("target: %+v\nwant %+v", got, target)
	}
}
