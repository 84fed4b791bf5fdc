package config

import (
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
)

// Falcon timing profiles.
const (
	ProfileSoftware = "software" // for TAP devices: milliseconds under load
	ProfileHardware = "hardware" // a NIC on a fabric of microseconds, for simulation
)

// Falcon chooses the transport's timing: a profile, and values that replace
// the profile's. What a field means is said at the field of that name in
// falcon.Profile.
type Falcon struct {
	Profile string `yaml:"profile"`

	ReqTxWindow      *uint32        `yaml:"req_tx_window"`
	DataTxWindow     *uint32        `yaml:"data_tx_window"`
	AckCount         *int           `yaml:"ack_count"`
	AckTimeout       *time.Duration `yaml:"ack_timeout"`
	ARFcwnd          *uint32        `yaml:"ar_fcwnd"`
	ARPercent        *int           `yaml:"ar_percent"`
	ARBurst          *bool          `yaml:"ar_burst"`
	OOODistance      *uint32        `yaml:"ooo_distance"`
	OOOCount         *int           `yaml:"ooo_count"`
	EarlyLimit       *uint8         `yaml:"early_limit"`
	ScanAll          *bool          `yaml:"scan_all"`
	OWNBypass        *bool          `yaml:"own_bypass"`
	RACK             *bool          `yaml:"rack"`
	ReorderTime      *time.Duration `yaml:"reorder_time"`
	Probe            *string        `yaml:"probe"`
	ProbeTime        *time.Duration `yaml:"probe_time"`
	AnswerTimeout    *time.Duration `yaml:"answer_timeout"`
	ReqOWNSlack      *uint32        `yaml:"req_own_slack"`
	DataOWNSlack     *uint32        `yaml:"data_own_slack"`
	MaxRetransmits   *int           `yaml:"max_retransmits"`
	GiveUp           *time.Duration `yaml:"give_up"`
	ResyncGiveUp     *time.Duration `yaml:"resync_give_up"`
	TxnTimeout       *time.Duration `yaml:"txn_timeout"`
	RxTimeout        *time.Duration `yaml:"rx_timeout"`
	OpGap            *time.Duration `yaml:"op_gap"`
	TurnBytes        *int           `yaml:"turn_bytes"`
	MaxTxn           *uint32        `yaml:"max_txn"`
	WeightNew        *int           `yaml:"weight_new"`
	WeightRetransmit *int           `yaml:"weight_retransmit"`
	WeightAck        *int           `yaml:"weight_ack"`

	RxPackets Occupancy `yaml:"rx_packets"`
	RxBuffers Occupancy `yaml:"rx_buffers"`

	RUE RateUpdate `yaml:"rue"`
	CC  Congestion `yaml:"cc"`
}

// Congestion replaces parameters of Swift and PLB. What a field means is said
// at the field of that name in cc.Params; times are durations here.
type Congestion struct {
	InitialFcwnd         *float64       `yaml:"initial_fcwnd"`
	InitialNcwnd         *uint32        `yaml:"initial_ncwnd"`
	InitialRTO           *time.Duration `yaml:"initial_rto"`
	InitialRTT           *time.Duration `yaml:"initial_rtt"`
	BaseDelayTarget      *time.Duration `yaml:"base_delay_target"`
	DelaySelect          *string        `yaml:"delay_select"`
	MinFcwnd             *float64       `yaml:"min_fcwnd"`
	MaxFcwnd             *float64       `yaml:"max_fcwnd"`
	FabricAI             *float64       `yaml:"fabric_ai"`
	FabricMDF            *float64       `yaml:"fabric_mdf"`
	MaxFabricMD          *float64       `yaml:"max_fabric_md"`
	MinNcwnd             *uint32        `yaml:"min_ncwnd"`
	MaxNcwnd             *uint32        `yaml:"max_ncwnd"`
	NICAI                *uint32        `yaml:"nic_ai"`
	NICMDF               *float64       `yaml:"nic_mdf"`
	MaxNICMD             *float64       `yaml:"max_nic_md"`
	TargetRxLevel        *uint8         `yaml:"target_rx_level"`
	RTTAlpha             *float64       `yaml:"rtt_alpha"`
	DelayAlpha           *float64       `yaml:"delay_alpha"`
	SmoothedRTT          *bool          `yaml:"smoothed_rtt"`
	PerHop               *time.Duration `yaml:"per_hop"`
	MinFlowScalingWindow *float64       `yaml:"min_flow_scaling_window"`
	MaxFlowScalingWindow *float64       `yaml:"max_flow_scaling_window"`
	MaxFlowScaling       *time.Duration `yaml:"max_flow_scaling"`
	MinRTO               *time.Duration `yaml:"min_rto"`
	RTOScalar            *float64       `yaml:"rto_scalar"`
	RetransmitLimit      *uint8         `yaml:"retransmit_limit"`
	MaxDecreaseOnDrop    *bool          `yaml:"max_decrease_on_drop"`
	PLB                  *bool          `yaml:"plb"`
	PLBTargetMultiple    *float64       `yaml:"plb_target_multiple"`
	PLBThreshold         *float64       `yaml:"plb_threshold"`
	PLBAttempts          *uint8         `yaml:"plb_attempts"`
}

// Occupancy replaces how the level of a receive pool is averaged and quantised.
type Occupancy struct {
	Alpha  *float64 `yaml:"alpha"`
	Levels []uint32 `yaml:"levels"`
}

func (o *Occupancy) apply(p *falcon.Occupancy) {
	override(&p.Alpha, o.Alpha)
	if len(o.Levels) > 0 {
		p.Levels = o.Levels
	}
}

var delaySelects = map[string]cc.DelaySelect{
	"full": cc.DelayFull, "fabric": cc.DelayFabric, "forward": cc.DelayForward, "reverse": cc.DelayReverse,
}

var probes = map[string]falcon.Probe{
	"none": falcon.ProbeNone, "last": falcon.ProbeLast,
	"first_unreceived": falcon.ProbeFirstUnreceived, "first_unacked": falcon.ProbeFirstUnacked,
}

// Build returns the transport's profile with the replacements applied.
func (f *Falcon) Build() falcon.Profile {
	p, params := falcon.Software(), cc.SoftwareParams()
	if f.Profile == ProfileHardware {
		p, params = falcon.Hardware(), cc.HardwareParams()
	}
	f.CC.apply(&params)
	p.CC = cc.NewSwift(params)
	f.RUE.apply(&p.RUE)
	f.RxPackets.apply(&p.RxPackets)
	f.RxBuffers.apply(&p.RxBuffers)
	override(&p.ReqTxWindow, f.ReqTxWindow)
	override(&p.DataTxWindow, f.DataTxWindow)
	override(&p.AckCount, f.AckCount)
	overrideTime(&p.AckTimeout, f.AckTimeout)
	override(&p.ARFcwnd, f.ARFcwnd)
	override(&p.ARPercent, f.ARPercent)
	override(&p.ARBurst, f.ARBurst)
	override(&p.OOODistance, f.OOODistance)
	override(&p.OOOCount, f.OOOCount)
	override(&p.EarlyLimit, f.EarlyLimit)
	override(&p.ScanAll, f.ScanAll)
	override(&p.OWNBypass, f.OWNBypass)
	override(&p.RACK, f.RACK)
	overrideTime(&p.ReorderTime, f.ReorderTime)
	if f.Probe != nil {
		p.Probe = probes[*f.Probe]
	}
	overrideTime(&p.ProbeTime, f.ProbeTime)
	overrideTime(&p.AnswerTimeout, f.AnswerTimeout)
	override(&p.ReqOWNSlack, f.ReqOWNSlack)
	override(&p.DataOWNSlack, f.DataOWNSlack)
	override(&p.MaxRetransmits, f.MaxRetransmits)
	overrideTime(&p.GiveUp, f.GiveUp)
	overrideTime(&p.ResyncGiveUp, f.ResyncGiveUp)
	overrideTime(&p.TxnTimeout, f.TxnTimeout)
	overrideTime(&p.RxTimeout, f.RxTimeout)
	overrideTime(&p.OpGap, f.OpGap)
	override(&p.TurnBytes, f.TurnBytes)
	override(&p.MaxTxn, f.MaxTxn)
	override(&p.WeightNew, f.WeightNew)
	override(&p.WeightRetransmit, f.WeightRetransmit)
	override(&p.WeightAck, f.WeightAck)
	return p
}

func (c *Congestion) apply(p *cc.Params) {
	override(&p.InitialFcwnd, c.InitialFcwnd)
	override(&p.InitialNcwnd, c.InitialNcwnd)
	overrideFU(&p.InitialRTO, c.InitialRTO)
	overrideFU(&p.InitialRTT, c.InitialRTT)
	overrideFU(&p.BaseDelayTarget, c.BaseDelayTarget)
	if c.DelaySelect != nil {
		p.DelaySelect = delaySelects[*c.DelaySelect]
	}
	override(&p.MinFcwnd, c.MinFcwnd)
	override(&p.MaxFcwnd, c.MaxFcwnd)
	override(&p.FabricAI, c.FabricAI)
	override(&p.FabricMDF, c.FabricMDF)
	override(&p.MaxFabricMD, c.MaxFabricMD)
	override(&p.MinNcwnd, c.MinNcwnd)
	override(&p.MaxNcwnd, c.MaxNcwnd)
	override(&p.NICAI, c.NICAI)
	override(&p.NICMDF, c.NICMDF)
	override(&p.MaxNICMD, c.MaxNICMD)
	override(&p.TargetRxLevel, c.TargetRxLevel)
	override(&p.RTTAlpha, c.RTTAlpha)
	override(&p.DelayAlpha, c.DelayAlpha)
	override(&p.SmoothedRTT, c.SmoothedRTT)
	overrideFU(&p.PerHop, c.PerHop)
	override(&p.MinFlowScalingWindow, c.MinFlowScalingWindow)
	override(&p.MaxFlowScalingWindow, c.MaxFlowScalingWindow)
	overrideFU(&p.MaxFlowScaling, c.MaxFlowScaling)
	overrideFU(&p.MinRTO, c.MinRTO)
	override(&p.RTOScalar, c.RTOScalar)
	override(&p.RetransmitLimit, c.RetransmitLimit)
	override(&p.MaxDecreaseOnDrop, c.MaxDecreaseOnDrop)
	override(&p.PLB, c.PLB)
	override(&p.PLBTargetMultiple, c.PLBTargetMultiple)
	override(&p.PLBThreshold, c.PLBThreshold)
	override(&p.PLBAttempts, c.PLBAttempts)
}

func override[T any](v *T, with *T) {
	if with != nil {
		*v = *with
	}
}

func overrideTime(v *falcon.Time, with *time.Duration) {
	if with != nil {
		*v = int64(*with)
	}
}

// overrideFU converts to the nearest Falcon units of 131.072 ns.
func overrideFU(v *uint32, with *time.Duration) {
	if with != nil {
		*v = uint32((uint64(*with)*1000 + cc.FUPicos/2) / cc.FUPicos)
	}
}

// maxFU is the longest time of the congestion control: 24 bits of Falcon units.
const maxFU = 2199 * time.Millisecond

func (f *Falcon) check(r *report) {
	oneOf(r, "falcon.profile", f.Profile, ProfileSoftware, ProfileHardware)
	p := f.Build()
	number := func(key string, given bool, v, lo, hi int64, power bool) {
		if !given {
			return
		}
		if v < lo || v > hi || power && v&(v-1) != 0 {
			kind := ""
			if power {
				kind = "a power of two "
			}
			r.add("falcon."+key, fmt.Sprintf("%d is out of range", v), fmt.Sprintf("use %s%d to %d", kind, lo, hi))
		}
	}
	number("req_tx_window", f.ReqTxWindow != nil, int64(p.ReqTxWindow), 1, falcon.MaxTxWindow, true)
	number("data_tx_window", f.DataTxWindow != nil, int64(p.DataTxWindow), 1, falcon.MaxTxWindow, true)
	number("max_txn", f.MaxTxn != nil, int64(p.MaxTxn), 1, falcon.MaxTxWindow, true)
	number("ack_count", f.AckCount != nil, int64(p.AckCount), 1, 1<<16, false)
	number("ooo_count", f.OOOCount != nil, int64(p.OOOCount), 0, 128, false)
	number("ar_percent", f.ARPercent != nil, int64(p.ARPercent), 0, 100, false)
	number("max_retransmits", f.MaxRetransmits != nil, int64(p.MaxRetransmits), 0, 1<<16, false)
	number("weight_new", f.WeightNew != nil, int64(p.WeightNew), 1, 1<<10, false)
	number("weight_retransmit", f.WeightRetransmit != nil, int64(p.WeightRetransmit), 1, 1<<10, false)
	number("turn_bytes", f.TurnBytes != nil, int64(p.TurnBytes), 0, 1<<20, false)
	number("weight_ack", f.WeightAck != nil, int64(p.WeightAck), 1, 1<<10, false)
	duration := func(key string, v *time.Duration, lo, hi time.Duration) {
		if v != nil && (*v < lo || *v > hi) {
			r.add("falcon."+key, fmt.Sprintf("%s is out of range", *v), fmt.Sprintf("use %s to %s", lo, hi))
		}
	}
	duration("ack_timeout", f.AckTimeout, 1, time.Second)
	if f.Probe != nil {
		oneOf(r, "falcon.probe", *f.Probe, "none", "last", "first_unreceived", "first_unacked")
	}
	duration("reorder_time", f.ReorderTime, 0, time.Second)
	duration("probe_time", f.ProbeTime, time.Microsecond, time.Minute)
	duration("answer_timeout", f.AnswerTimeout, time.Microsecond, time.Hour)
	duration("give_up", f.GiveUp, 0, time.Hour)
	duration("resync_give_up", f.ResyncGiveUp, 0, time.Hour)
	duration("txn_timeout", f.TxnTimeout, 0, time.Hour)
	duration("rx_timeout", f.RxTimeout, 0, time.Hour)
	duration("op_gap", f.OpGap, 0, time.Second)
	before := len(r.problems)
	f.RUE.check(r, duration)
	f.CC.check(r, duration)
	if err := p.Check(); err != nil && len(r.problems) == before {
		r.add("falcon", err.Error(), "")
	}
}

func (c *Congestion) check(r *report, duration func(string, *time.Duration, time.Duration, time.Duration)) {
	if c.DelaySelect != nil {
		oneOf(r, "falcon.cc.delay_select", *c.DelaySelect, "full", "fabric", "forward", "reverse")
	}
	for _, d := range []struct {
		key string
		v   *time.Duration
	}{
		{"initial_rto", c.InitialRTO}, {"initial_rtt", c.InitialRTT}, {"base_delay_target", c.BaseDelayTarget}, {"min_rto", c.MinRTO},
	} {
		duration("cc."+d.key, d.v, time.Microsecond, maxFU)
	}
	duration("cc.per_hop", c.PerHop, 0, maxFU)
	duration("cc.max_flow_scaling", c.MaxFlowScaling, 0, maxFU)
	const fcwndMax = float64(cc.MaxFcwnd) / cc.One
	for _, n := range []struct {
		key    string
		v      *float64
		lo, hi float64
	}{
		{"initial_fcwnd", c.InitialFcwnd, 0.001, fcwndMax},
		{"min_fcwnd", c.MinFcwnd, 0.001, fcwndMax},
		{"max_fcwnd", c.MaxFcwnd, 0.001, fcwndMax},
		{"fabric_ai", c.FabricAI, 0, fcwndMax},
		{"fabric_mdf", c.FabricMDF, 0, 1},
		{"max_fabric_md", c.MaxFabricMD, 0, 1},
		{"nic_mdf", c.NICMDF, 0, 1},
		{"max_nic_md", c.MaxNICMD, 0, 1},
		{"rtt_alpha", c.RTTAlpha, 0, 1},
		{"delay_alpha", c.DelayAlpha, 0, 1},
		{"min_flow_scaling_window", c.MinFlowScalingWindow, 0.001, fcwndMax},
		{"max_flow_scaling_window", c.MaxFlowScalingWindow, 0.001, fcwndMax},
		{"rto_scalar", c.RTOScalar, 1, 100},
		{"plb_target_multiple", c.PLBTargetMultiple, 0, 100},
		{"plb_threshold", c.PLBThreshold, 0, 1},
	} {
		if n.v != nil && (*n.v < n.lo || *n.v > n.hi) {
			r.add("falcon.cc."+n.key, fmt.Sprintf("%g is out of range", *n.v), fmt.Sprintf("use %g to %g", n.lo, n.hi))
		}
	}
	for _, n := range []struct {
		key string
		v   *uint32
		lo  uint32
	}{{"initial_ncwnd", c.InitialNcwnd, 1}, {"min_ncwnd", c.MinNcwnd, 1}, {"max_ncwnd", c.MaxNcwnd, 1}, {"nic_ai", c.NICAI, 0}} {
		if n.v != nil && (*n.v < n.lo || *n.v > cc.MaxNcwnd) {
			r.add("falcon.cc."+n.key, fmt.Sprintf("%d is out of range", *n.v), fmt.Sprintf("use %d to %d", n.lo, cc.MaxNcwnd))
		}
	}
	if c.TargetRxLevel != nil && *c.TargetRxLevel > 31 {
		r.add("falcon.cc.target_rx_level", fmt.Sprintf("%d is out of range", *c.TargetRxLevel), "use 0 to 31")
	}
	if c.MinFcwnd != nil && c.MaxFcwnd != nil && *c.MinFcwnd > *c.MaxFcwnd {
		r.add("falcon.cc.min_fcwnd", fmt.Sprintf("%g is above max_fcwnd %g", *c.MinFcwnd, *c.MaxFcwnd), "lower it")
	}
	if c.MinNcwnd != nil && c.MaxNcwnd != nil && *c.MinNcwnd > *c.MaxNcwnd {
		r.add("falcon.cc.min_ncwnd", fmt.Sprintf("%d is above max_ncwnd %d", *c.MinNcwnd, *c.MaxNcwnd), "lower it")
	}
}
