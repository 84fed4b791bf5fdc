package falcon

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
)

// Profile holds the timing and sizing parameters of an engine. Software and Hardware return the two
// defaults. A zero field is not replaced, so start from one of them.
type Profile struct {
	Name string
	CC   cc.Algorithm // congestion control, shared by all connections
	RUE  rue.Config   // the Rate Update Engine that runs it

	ReqTxWindow  uint32 // packets in flight in the request window, power of two ≤ MaxTxWindow
	DataTxWindow uint32 // packets in flight in the data window, power of two ≤ MaxTxWindow

	AckCount   int  // packets received before a coalesced ACK is sent (Falcon §9.1.6)
	AckTimeout Time // longest delay of a coalesced ACK

	ARFcwnd   uint32 // AR on every packet while fcwnd, packets, is at or below this (Falcon §9.1.3.1)
	ARPercent int    // share of packets with AR above it, 0..100
	ARBurst   bool   // AR on the push after which nothing waits, and on pushes marked last

	OOODistance uint32 // early retransmission: distance to the highest PSN received (Falcon §9.1.4)
	OOOCount    int    // a packet also counts as lost when this many behind it were received; 0: off
	EarlyLimit  uint8  // early retransmissions of one packet

	ScanAll   bool // a packet sent too recently does not end the search for lost ones
	OWNBypass bool // the first out-of-window notification within an RTO does not wait for an RTT

	RACK        bool // packets sent well before one that arrived count as lost (Falcon §9.1.6, RFC 8985)
	ReorderTime Time // minimum of "well before"; a quarter of an RTT if that is more

	Probe     Probe // which packet is sent again when acknowledgements fail to arrive (tail loss probe)
	ProbeTime Time  // minimum time until a probe; two RTTs if that is more, doubled for each further probe

	NackHeld bool // pushes behind one that the ULP was not ready for are NACKed even while the ULP has that one again (Falcon §8.5.3.4)

	ReqOWNSlack  uint32 // packets in flight above which new ones pause after an out-of-window notification
	DataOWNSlack uint32

	MaxRetransmits int  // timeouts of a packet before Resync, and of a Resync before the connection ends; 0 = no limit
	AnswerTimeout  Time // a push that the peer has received and its ULP has not answered is sent again after this time
	GiveUp         Time // age of a packet at which Resync replaces it, 0 = no limit
	ResyncGiveUp   Time // age of a Resync at which the connection ends, 0 = no limit
	TxnTimeout     Time // time since a transaction was first sent at which it completes with CmplLocalTO, 0 = never
	RxTimeout      Time // how long the target holds what waits for its peer, 0 = for ever; longer than peers' TxnTimeout

	OpGap     Time   // minimum distance of two packets of a connection, 0 = none
	TurnBytes int    // a connection's turn lasts for up to this many bytes of packets, 0 = for one packet
	MaxTxn    uint32 // transactions in progress per connection and direction, power of two ≤ MaxTxWindow

	RxPackets, RxBuffers Occupancy // how the level of the receive pools, contexts and cells, is reported to the peer

	WeightNew, WeightRetransmit, WeightAck int // shares of the transmit arbiter, each at least 1
}

// Probe names the packet a tail loss probe sends.
type Probe uint8

// Probes.
const (
	ProbeNone            Probe = iota // no probes
	ProbeLast                         // the packet sent last
	ProbeFirstUnreceived              // the oldest packet that the peer is not known to have
	ProbeFirstUnacked                 // the oldest packet that is not acknowledged
)

// MaxTxWindow bounds ReqTxWindow, DataTxWindow and MaxTxn.
const MaxTxWindow = 1024

// MaxAckCount bounds AckCount. It is more than a window, so with it ACKs are coalesced by time
// alone.
const MaxAckCount = 1024

// Software is the profile for TAP devices: round trips of tens of microseconds when idle,
// milliseconds under load.
func Software() Profile {
	return Profile{
		Name: "software", CC: congestionControl(cc.Software), RUE: rue.Immediate(),
		ReqTxWindow: 64, DataTxWindow: 256,
		AckCount: 10, AckTimeout: 50 * int64(time.Microsecond),
		ARFcwnd: 2, ARPercent: 10, ARBurst: true,
		OOODistance: 3, EarlyLimit: 16, ReqOWNSlack: 32, DataOWNSlack: 128, ScanAll: true,
		RACK: true, ReorderTime: 2 * int64(time.Microsecond), Probe: ProbeFirstUnreceived, ProbeTime: 50 * int64(time.Microsecond),
		AnswerTimeout: 100 * int64(time.Millisecond),
		TurnBytes:     16 << 10, GiveUp: 8 * int64(time.Second), ResyncGiveUp: 2 * int64(time.Second), TxnTimeout: 30 * int64(time.Second),
		RxTimeout: 60 * int64(time.Second),
		RxPackets: Occupancy{Alpha: 0.5}, RxBuffers: Occupancy{Alpha: 0.5},
		MaxTxn: 256, WeightNew: 1, WeightRetransmit: 1, WeightAck: 2,
	}
}

// Hardware is the profile of a NIC on a microsecond fabric, for virtual time.
func Hardware() Profile {
	return Profile{
		Name: "hardware", CC: congestionControl(cc.Hardware), RUE: rue.Hardware(),
		ReqTxWindow: 256, DataTxWindow: 256,
		AckCount: 10, AckTimeout: 8 * int64(time.Microsecond),
		ARFcwnd: 2, ARPercent: 10,
		OOODistance: 3, EarlyLimit: 16, ReqOWNSlack: 32, DataOWNSlack: 128, ScanAll: true,
		RACK: true, ReorderTime: int64(time.Microsecond), Probe: ProbeFirstUnreceived, ProbeTime: 20 * int64(time.Microsecond),
		AnswerTimeout:  2 * int64(time.Millisecond),
		MaxRetransmits: 7, TxnTimeout: 5 * int64(time.Millisecond), OpGap: 25,
		RxTimeout: 60 * int64(time.Second),
		RxPackets: Occupancy{Alpha: 0.5}, RxBuffers: Occupancy{Alpha: 0.5},
		MaxTxn: 256, WeightNew: 1, WeightRetransmit: 1, WeightAck: 2,
	}
}

func congestionControl(t cc.Timing) cc.Algorithm {
	d, _ := cc.Lookup(cc.Default)
	return d.Parameters(t).New()
}

// Check returns an error naming the first impossible value.
func (p *Profile) Check() error {
	pow2 := func(v uint32) bool { return v > 0 && v <= MaxTxWindow && v&(v-1) == 0 }
	switch {
	case p.CC == nil:
		return configError("Profile.CC", "nil", "set a cc.Algorithm")
	case !pow2(p.ReqTxWindow):
		return configError("Profile.ReqTxWindow", p.ReqTxWindow, "use a power of two from 1 to 1024")
	case !pow2(p.DataTxWindow):
		return configError("Profile.DataTxWindow", p.DataTxWindow, "use a power of two from 1 to 1024")
	case !pow2(p.MaxTxn):
		return configError("Profile.MaxTxn", p.MaxTxn, "use a power of two from 1 to 1024")
	case p.AckCount < 1 || p.AckCount > MaxAckCount || p.AckTimeout < 1:
		return configError("Profile.AckCount, AckTimeout", p.AckCount, "use 1 to 1024 packets and at least 1 ns")
	case p.ARPercent < 0 || p.ARPercent > 100:
		return configError("Profile.ARPercent", p.ARPercent, "use 0 to 100")
	case p.GiveUp < 0 || p.ResyncGiveUp < 0 || p.TxnTimeout < 0 || p.RxTimeout < 0 || p.OpGap < 0 || p.TurnBytes < 0 || p.MaxRetransmits < 0 || p.OOOCount < 0:
		return configError("Profile limits", "negative", "use 0 for no limit")
	case p.ReorderTime < 0 || p.AnswerTimeout < 1 || p.Probe > ProbeFirstUnacked || p.Probe != ProbeNone && p.ProbeTime < 1:
		return configError("Profile.ReorderTime, AnswerTimeout, Probe, ProbeTime", "impossible", "use times above 0 and a known probe")
	case p.WeightNew < 1 || p.WeightRetransmit < 1 || p.WeightAck < 1:
		return configError("Profile weights", "below 1", "use at least 1")
	}
	if err := p.RxPackets.check("Profile.RxPackets"); err != nil {
		return err
	}
	if err := p.RxBuffers.check("Profile.RxBuffers"); err != nil {
		return err
	}
	return p.RUE.Check()
}

// Occupancy configures how the level of a receive pool is averaged and quantised for
// acknowledgements (Falcon §10.2).
type Occupancy struct {
	Alpha  float64  // weight of the newest value, above 0 to 1; 1 is the instantaneous level
	Levels []uint32 // 31 rising thresholds, in contexts or cells; empty: 32 equal parts of the pool
}

// OccupancyLevels is the number of thresholds: one less than the number of values of a 5-bit level.
const OccupancyLevels = 31

func (o *Occupancy) check(what string) error {
	switch {
	case !(o.Alpha > 0 && o.Alpha <= 1):
		return configError(what+".Alpha", o.Alpha, "use above 0 to 1")
	case len(o.Levels) != 0 && len(o.Levels) != OccupancyLevels:
		return configError(what+".Levels", o.Levels, "use 31 thresholds or none")
	}
	for i := 1; i < len(o.Levels); i++ {
		if o.Levels[i] < o.Levels[i-1] {
			return configError(what+".Levels", o.Levels, "use rising thresholds")
		}
	}
	return nil
}
