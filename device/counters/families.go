package counters

import (
	"strings"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Family is a group of counters that form one metric with labels.
type Family struct {
	Metric string
	Help   string
	Labels []string
	// of returns the labels' values for a counter's name; nil: the counter is not in the family.
	of func(name string) []string
}

// Families lists all families.
var Families = []Family{
	{"vnic_drops_total", "Packets that ended at this NIC and not at a function.", []string{"stage", "reason"}, dropLabels},
	{"vnic_falcon_completions_total", "Transactions of the transport that ended, by how (Falcon §11).", []string{"code"}, func(name string) []string {
		return after(name, "falcon.completion_")
	}},
	{"vnic_falcon_nacks_total", "NACKs of the transport by what they refuse.", []string{"direction", "code"}, nackLabels},
	{"vnic_impaired_packets_total", "Packets that passed while the uplink was impaired on purpose, by what became of them.", []string{"direction", "effect"}, impairLabels},
	{"vnic_port_frames_total", "Frames that passed a function's port, seen from the NIC.", []string{"port", "direction"}, portLabels("frames")},
	{"vnic_port_bytes_total", "Bytes that passed a function's port, seen from the NIC.", []string{"port", "direction"}, portLabels("bytes")},
	{"vnic_port_dropped_frames_total", "Frames that the device of a port did not give or take whole.", []string{"port", "direction"}, portLabels("dropped")},
}

// FamilyOf returns the family of a counter and its labels' values. hidden means that another metric
// already contains it.
func FamilyOf(name string) (f *Family, labels []string, hidden bool) {
	if name == "falcon.nacks_sent" || name == "falcon.nacks_received" { // the sums of vnic_falcon_nacks_total
		return nil, nil, true
	}
	for i := range Families {
		if labels = Families[i].of(name); labels != nil {
			return &Families[i], labels, false
		}
	}
	return nil, nil, strings.HasPrefix(name, "port.") // the gateway's reasons include those of ports
}

// IsDrop reports whether a counter counts packets that ended at this NIC and not at a function.
func IsDrop(name string) bool { return dropLabels(name) != nil }

func after(name, prefix string) []string {
	if rest, ok := strings.CutPrefix(name, prefix); ok {
		return []string{rest}
	}
	return nil
}

func dropLabels(name string) []string {
	source, what, _ := strings.Cut(name, ".")
	if source == "drop" {
		return []string{"device", what}
	}
	if reason, ok := strings.CutPrefix(what, "drop_"); ok && source != "port" {
		return []string{source, reason}
	}
	return nil
}

func nackLabels(name string) []string {
	if code, ok := strings.CutPrefix(name, "falcon.nack_sent_"); ok {
		return []string{"tx", code}
	}
	if code, ok := strings.CutPrefix(name, "falcon.nack_received_"); ok {
		return []string{"rx", code}
	}
	return nil
}

func impairLabels(name string) []string {
	what, ok := strings.CutPrefix(name, "impair.")
	if !ok {
		return nil
	}
	direction, effect, _ := strings.Cut(what, "_")
	return []string{direction, effect}
}

// portLabels returns a function that parses "port.NAME.rx_bytes". NAME is a network device's name
// and may contain dots.
func portLabels(unit string) func(string) []string {
	return func(name string) []string {
		what, ok := strings.CutPrefix(name, "port.")
		dot := strings.LastIndexByte(what, '.')
		if !ok || dot < 0 {
			return nil
		}
		direction, of, ok := strings.Cut(what[dot+1:], "_")
		if !ok || of != unit {
			return nil
		}
		return []string{what[:dot], direction}
	}
}

// AddFalcon adds the transport's counters, including those by reason.
func AddFalcon(v control.Counters, s *falcon.Stats) {
	OfFalcon.Add(v, s)
	for r, n := range s.Drops {
		if r != 0 {
			v["falcon.drop_"+Name(wire.Drop(r).String())] = n
		}
	}
	for code := range s.NackCodesSent {
		if name := Name(wire.NackCode(code).String()); wire.NackCode(code).Valid() {
			v["falcon.nack_sent_"+name], v["falcon.nack_received_"+name] = s.NackCodesSent[code], s.NackCodesReceived[code]
		}
	}
	v["falcon.nack_received_reserved"] = s.NackCodesReceived[0]
	for code, n := range s.Completions {
		if name := falcon.Completion(code).Name(); name != "" {
			v["falcon.completion_"+Name(name)] = n
		}
	}
}

// AddUnderlay adds the verdicts of the underlay.
func AddUnderlay(v control.Counters, verdicts []uint64) {
	for r, n := range verdicts {
		v["underlay."+Name(underlay.Verdict(r).String())] = n
	}
}

// AddGateway adds the counters of plain IP, including those by reason.
func AddGateway(v control.Counters, s *gateway.Stats) {
	OfGateway.Add(v, s)
	for r, n := range s.Reasons {
		if r != 0 {
			v["gateway."+gateway.Reason(r).String()] = n
		}
	}
}

// AddPort adds the counters of a port's device.
func AddPort(v control.Counters, name string, s *gateway.PortStats) {
	at := "port." + name + "."
	v[at+"rx_frames"], v[at+"rx_bytes"], v[at+"rx_dropped"] = s.RxFrames, s.RxBytes, s.RxDropped
	v[at+"tx_frames"], v[at+"tx_bytes"], v[at+"tx_dropped"] = s.TxFrames, s.TxBytes, s.TxDropped
}
