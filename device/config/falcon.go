package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc"
)

// Falcon timing profiles.
const (
	ProfileSoftware = "software" // for TAP devices: delays of milliseconds under load
	ProfileHardware = "hardware" // for a NIC on a fabric with microsecond delays, in simulations
)

// Falcon chooses the transport's timing: a profile, and values that override it. Each field is
// described at the field of that name in falcon.Profile.
type Falcon struct {
	Profile string `yaml:"profile"`

	ReqTxWindow      *uint32        `yaml:"req_tx_window" use:"a power of two, 1 to 1024"`
	DataTxWindow     *uint32        `yaml:"data_tx_window" use:"a power of two, 1 to 1024"`
	AckCount         *int           `yaml:"ack_count" use:"1 to 1024"`
	AckTimeout       *time.Duration `yaml:"ack_timeout"`
	ARFcwnd          *uint32        `yaml:"ar_fcwnd"`
	ARPercent        *int           `yaml:"ar_percent" use:"0 to 100"`
	ARBurst          *bool          `yaml:"ar_burst"`
	OOODistance      *uint32        `yaml:"ooo_distance"`
	OOOCount         *int           `yaml:"ooo_count" use:"0 to 128"`
	EarlyLimit       *uint8         `yaml:"early_limit"`
	ScanAll          *bool          `yaml:"scan_all"`
	OWNBypass        *bool          `yaml:"own_bypass"`
	NackHeld         *bool          `yaml:"nack_held"`
	RACK             *bool          `yaml:"rack"`
	ReorderTime      *time.Duration `yaml:"reorder_time"`
	Probe            *string        `yaml:"probe"`
	ProbeTime        *time.Duration `yaml:"probe_time"`
	AnswerTimeout    *time.Duration `yaml:"answer_timeout"`
	ReqOWNSlack      *uint32        `yaml:"req_own_slack"`
	DataOWNSlack     *uint32        `yaml:"data_own_slack"`
	MaxRetransmits   *int           `yaml:"max_retransmits" use:"0 to 65536"`
	GiveUp           *time.Duration `yaml:"give_up"`
	ResyncGiveUp     *time.Duration `yaml:"resync_give_up"`
	TxnTimeout       *time.Duration `yaml:"txn_timeout"`
	RxTimeout        *time.Duration `yaml:"rx_timeout"`
	OpGap            *time.Duration `yaml:"op_gap"`
	TurnBytes        *int           `yaml:"turn_bytes" use:"0 to 1048576"`
	MaxTxn           *uint32        `yaml:"max_txn" use:"a power of two, 1 to 1024"`
	WeightNew        *int           `yaml:"weight_new" use:"1 to 1024"`
	WeightRetransmit *int           `yaml:"weight_retransmit" use:"1 to 1024"`
	WeightAck        *int           `yaml:"weight_ack" use:"1 to 1024"`

	RxPackets Occupancy `yaml:"rx_packets"`
	RxBuffers Occupancy `yaml:"rx_buffers"`

	RUE RateUpdate `yaml:"rue"`
	CC  Congestion `yaml:"cc"`
}

// Occupancy overrides how the level of a receive pool is averaged and quantised.
type Occupancy struct {
	Alpha  *float64 `yaml:"alpha"`
	Levels []uint32 `yaml:"levels"`
}

func (o *Occupancy) check(r *report, path string) {
	if a := o.Alpha; a != nil && !(*a > 0 && *a <= 1) {
		r.add(path+".alpha", fmt.Sprintf("%v is out of range", *a), "use a number above 0, at most 1")
	}
	switch n := len(o.Levels); {
	case n != 0 && n != falcon.OccupancyLevels:
		r.add(path+".levels", fmt.Sprintf("%d thresholds are listed", n), fmt.Sprintf("list %d, or none", falcon.OccupancyLevels))
	case !slices.IsSorted(o.Levels):
		r.add(path+".levels", fmt.Sprintf("the thresholds %v do not rise", o.Levels), "write none below the one before it")
	}
}

func (o *Occupancy) apply(p *falcon.Occupancy) {
	override(&p.Alpha, o.Alpha)
	if len(o.Levels) > 0 {
		p.Levels = o.Levels
	}
}

var probes = map[string]falcon.Probe{
	"none": falcon.ProbeNone, "last": falcon.ProbeLast,
	"first_unreceived": falcon.ProbeFirstUnreceived, "first_unacked": falcon.ProbeFirstUnacked,
}

// Build returns the transport's profile with the overrides applied.
func (f *Falcon) Build() falcon.Profile {
	p, timing := falcon.Software(), cc.Software
	if f.Profile == ProfileHardware {
		p, timing = falcon.Hardware(), cc.Hardware
	}
	p.CC = f.CC.build(timing)
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
	override(&p.NackHeld, f.NackHeld)
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

func (f *Falcon) check(r *report) {
	oneOf(r, "falcon.profile", f.Profile, ProfileSoftware, ProfileHardware)
	p, before := f.Build(), len(r.problems)
	number := func(key string, given bool, v, lo, hi int64, power bool) {
		if !given {
			return
		}
		if v < lo || v > hi || power && v&(v-1) != 0 {
			kind := ""
			if power {
				kind = "a power of two, "
			}
			r.add("falcon."+key, fmt.Sprintf("%d is out of range", v), fmt.Sprintf("use %s%d to %d", kind, lo, hi))
		}
	}
	number("req_tx_window", f.ReqTxWindow != nil, int64(p.ReqTxWindow), 1, falcon.MaxTxWindow, true)
	number("data_tx_window", f.DataTxWindow != nil, int64(p.DataTxWindow), 1, falcon.MaxTxWindow, true)
	number("max_txn", f.MaxTxn != nil, int64(p.MaxTxn), 1, falcon.MaxTxWindow, true)
	number("ack_count", f.AckCount != nil, int64(p.AckCount), 1, falcon.MaxAckCount, false)
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
	f.RxPackets.check(r, "falcon.rx_packets")
	f.RxBuffers.check(r, "falcon.rx_buffers")
	f.RUE.check(r, &p.RUE, duration)
	f.CC.check(r)
	if err := p.Check(); err != nil && len(r.problems) == before {
		r.add("falcon", err.Error(), "")
	}
}
