package explain

import (
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestANameIsExplainedInAnySpelling: a name that vnic prints is explained in the words of the documentation, however it is
// written; of another the nearest is named.
func TestANameIsExplainedInAnySpelling(t *testing.T) {
	for name, want := range map[string][]string{
		"DRV-602":                      {"DRV-602 (docs/abi/index.md, 6. Send and receive queues)\nThe driver owns slots", "MUST NOT move the producer back.", "Broken by: a producer that moved back"},
		"drv602":                       {"DRV-602 (docs"},
		"DEV-502":                      {"The producer in memory is the truth, the doorbell a hint. The device reads each command once"},
		"WCLocProtErr":                 {"local protection error", "an SGE is not inside a region"},
		"locproterr":                   {"WCLocProtErr (docs/troubleshooting.md"},
		"StatusBusy":                   {"other objects use this one"},
		"FaultCommand":                 {"what the driver did:"},
		"EventQPFatal":                 {"the queue pair is in ERR"},
		"underlay.drop_no_route":       {"`uplink.gateway` is missing"},
		"falcon.nack_sent_invalid_cid": {"falcon.nack_sent_… (docs", "NACKs by code"},
		"port.vp1.rx_dropped":          {"port.NAME.rx_dropped (docs"},
		"vnic_drops_total":             {"labels: stage, reason"},
	} {
		out, err := vnictest.Here(t, Command(), name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: %q, want %q", name, out, w)
			}
		}
	}
	for name, want := range map[string]string{"rdma.errrors": `did you mean "rdma.errors"?`, "DRV-" + "999": "there is no rule DRV-" + "999", "colour": `"colour" is not known: give a rule`} {
		if _, err := vnictest.Here(t, Command(), name); cli.ExitStatus(err) != cli.ExitFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAllIsExplained: there is a text for every rule that `vnic show violations` may name, every
// status of a completion and every counter with a help.
func TestAllIsExplained(t *testing.T) {
	known := map[string]string{}
	for _, e := range explained() {
		known[e.Name] = e.Text
		if e.Text == "" || strings.ContainsAny(e.Text, "\x00") || strings.Contains(e.Text, "](") {
			t.Errorf("%s: %q", e.Name, e.Text)
		}
	}
	for _, c := range abi.Clauses {
		if !strings.Contains(known[c.Clause.String()], "Broken by: ") {
			t.Errorf("nothing of %s", c.Clause)
		}
	}
	for name, c := range counters.All() {
		if c.Help != "" && known[name] == "" {
			t.Errorf("nothing of %s", name)
		}
	}
}
