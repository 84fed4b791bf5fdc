package falcon

import (
	"fmt"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/internal/param"
)

// Keys returns a key for each parameter of the profile but those of the congestion control, which
// has its own (cc.Parameters).
func (p *Profile) Keys() []param.Key {
	const unlimited = 1<<32 - 1
	return []param.Key{
		param.PowerOfTwo("req_tx_window", "packets in flight in the request window", &p.ReqTxWindow, MaxTxWindow),
		param.PowerOfTwo("data_tx_window", "packets in flight in the data window", &p.DataTxWindow, MaxTxWindow),
		param.Number("ack_count", "packets received before a coalesced ACK is sent", &p.AckCount, 1, MaxAckCount),
		param.Time("ack_timeout", "longest delay of a coalesced ACK", &p.AckTimeout, 1, time.Second),
		param.Number("ar_fcwnd", "every packet asks for an ACK while the fabric window is at or below this", &p.ARFcwnd, 0, unlimited),
		param.Number("ar_percent", "share of packets that ask for an ACK above ar_fcwnd, in percent", &p.ARPercent, 0, 100),
		param.Flag("ar_burst", "the last packet of a burst or message asks for an ACK", &p.ARBurst),
		param.Number("ooo_distance", "early retransmission: distance to the highest packet received", &p.OOODistance, 0, unlimited).ForSimulation(),
		param.Number("ooo_count", "early retransmission: also when this many packets after it were received; 0: off", &p.OOOCount, 0, 128).ForSimulation(),
		param.Number("early_limit", "most early retransmissions of one packet", &p.EarlyLimit, 0, 255),
		param.Flag("scan_all", "a packet sent too recently does not end the search for lost ones", &p.ScanAll),
		param.Flag("own_bypass", "the first out-of-window notification in a retransmission timeout does not wait for a round trip", &p.OWNBypass),
		param.Flag("nack_held", "while a receiver that was not ready decides again, later pushes are NACKed", &p.NackHeld),
		param.Flag("rack", "a packet is lost when one sent well after it has arrived", &p.RACK),
		param.Time("reorder_time", "\"well after\" means at least this; more if packets overtake each other", &p.ReorderTime, 0, time.Second),
		param.Choice("probe", "the packet to send again when no ACKs arrive", &p.Probe, "none", "last", "first_unreceived", "first_unacked").ForSimulation(),
		param.Time("probe_time", "probe after at least this, or two round trips if that is more", &p.ProbeTime, time.Microsecond, time.Minute),
		param.Time("answer_timeout", "a push that the peer has received but not answered is sent again after this", &p.AnswerTimeout, time.Microsecond, time.Hour),
		param.Number("req_own_slack", "requests in flight above which new ones pause after an out-of-window notification, packets", &p.ReqOWNSlack, 0, unlimited),
		param.Number("data_own_slack", "the same of the data window", &p.DataOWNSlack, 0, unlimited),
		param.Number("max_retransmits", "timeouts of a packet before the connection gives up on it; 0: no limit", &p.MaxRetransmits, 0, 1<<16),
		param.Time("give_up", "age of a packet at which the connection gives up on it; 0s: no limit", &p.GiveUp, 0, time.Hour),
		param.Time("resync_give_up", "age of a Resync at which the connection ends; 0s: no limit", &p.ResyncGiveUp, 0, time.Hour),
		param.Time("txn_timeout", "time from a transaction's first packet after which it fails; 0s: never", &p.TxnTimeout, 0, time.Hour),
		param.Time("rx_timeout", "how long a peer's requests wait for an earlier one that is missing; set it above the peers' txn_timeout; 0s: forever", &p.RxTimeout, 0, time.Hour),
		param.Time("op_gap", "least time between two packets of a connection", &p.OpGap, 0, time.Second),
		param.Number("turn_bytes", "a busy connection sends about this much before the next one does; 0: one packet", &p.TurnBytes, 0, 1<<20),
		param.PowerOfTwo("max_txn", "transactions in progress per connection and direction", &p.MaxTxn, MaxTxWindow),
		param.Number("weight_new", "share of new packets in the transmit arbiter", &p.WeightNew, 1, 1<<10).ForSimulation(),
		param.Number("weight_retransmit", "share of retransmitted packets", &p.WeightRetransmit, 1, 1<<10).ForSimulation(),
		param.Number("weight_ack", "share of ACKs", &p.WeightAck, 1, 1<<10).ForSimulation(),
		p.RxPackets.alpha("rx_packets.alpha", "level of the receive contexts, told to the peer: weight of the newest value"),
		p.RxPackets.levels("rx_packets.levels", "its 31 rising thresholds, in contexts; none: 32 equal parts"),
		p.RxBuffers.alpha("rx_buffers.alpha", "the same of the receive cells: weight of the newest value"),
		p.RxBuffers.levels("rx_buffers.levels", "its 31 rising thresholds, in cells; none: 32 equal parts"),
		param.Time("rue.service", "processing time of an event by the Rate Update Engine, which runs congestion control; with 0s here and in latency it answers at once", &p.RUE.Service, 0, time.Second).ForSimulation(),
		param.Time("rue.latency", "time from then until the result takes effect", &p.RUE.Latency, 0, time.Second).ForSimulation(),
		param.Number("rue.size", "entries of its event queue", &p.RUE.Size, 1, rue.MaxQueue).ForSimulation(),
		param.Number("rue.threshold1", "queue length up to which every event is raised", &p.RUE.Threshold1, 0, rue.MaxQueue).ForSimulation(),
		param.Number("rue.threshold2", "up to which those after interval or packets are raised", &p.RUE.Threshold2, 0, rue.MaxQueue).ForSimulation(),
		param.Number("rue.threshold3", "up to which those after interval are raised; above, those after both", &p.RUE.Threshold3, 0, rue.MaxQueue).ForSimulation(),
		param.Time("rue.interval", "time since a connection's last event", &p.RUE.Interval, 0, time.Hour).ForSimulation(),
		param.Number("rue.packets", "packets since a connection's last event", &p.RUE.Packets, 0, 1<<16-1).ForSimulation(),
	}
}

func (o *Occupancy) alpha(name, about string) param.Key {
	return param.Of(
		name, about, "above 0, at most 1",
		func() float64 { return o.Alpha }, func(v float64) { o.Alpha = v },
		func(v float64) (string, string) {
			if !(v > 0 && v <= 1) {
				return fmt.Sprintf("%v is out of range", v), "use a number above 0, at most 1"
			}
			return "", ""
		},
	).ForSimulation()
}

func (o *Occupancy) levels(name, about string) param.Key {
	return param.Of(
		name, about, fmt.Sprintf("%d numbers that rise, or none", OccupancyLevels),
		func() []uint32 { return o.Levels },
		func(v []uint32) {
			if len(v) > 0 {
				o.Levels = v
			}
		},
		func(v []uint32) (string, string) {
			switch {
			case len(v) != 0 && len(v) != OccupancyLevels:
				return fmt.Sprintf("%d thresholds are listed", len(v)), fmt.Sprintf("list %d, or none", OccupancyLevels)
			case !slices.IsSorted(v):
				return fmt.Sprintf("the thresholds %v do not rise", v), "write none below the one before it"
			}
			return "", ""
		},
	).ForSimulation()
}
