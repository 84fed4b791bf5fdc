package sim

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/falcon/sim"
)

func TestSimPrintsResultsAndDrawsPlots(t *testing.T) {
	dir := t.TempDir()
	file, plots := filepath.Join(dir, "tiny.yaml"), filepath.Join(dir, "plots")
	if err := os.WriteFile(file, []byte(`
network: {rate: 100G, rtt: 10us, buffer: 2BDP, loss: 0.01}
flows: [{from: 0, to: 1, sizes: [4096]}]
duration: 1ms
`), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := vnictest.Here(t, Command(), file, "--seed", "7", "--svg", plots)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tiny", "Gbit/s", "of that without impairments", "seed 7"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	out, err := vnictest.Here(t, Command(), file, "--seed", "7", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var r sim.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Scenario != "tiny" || r.Seed != 7 || len(r.Series) != 200 || r.Goodput < 50e9 {
		t.Errorf("%v: %d samples, %v bit/s", err, len(r.Series), r.Goodput)
	}
	for _, name := range []string{"goodput", "cwnd", "delay", "queue"} {
		if b, err := os.ReadFile(filepath.Join(plots, "tiny-"+name+".svg")); err != nil || !bytes.Contains(b, []byte("<svg")) {
			t.Errorf("plot %s: %v", name, err)
		}
	}
}

func TestSimSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte("network: {rate: 100G, rtt: 10us, buffer: 10}\nduration: 1ms\nflows: [{from: 0, to: 1, sizes: [64]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"network.buffer: 10 bytes is out of range; use at least": {file},
		"nowhere.yaml": {"nowhere.yaml"},
		"--svg: mkdir": {"../../../falcon/sim/scenarios/reorder2.yaml", "--svg", filepath.Join(file, "x")},
	} {
		if _, err := vnictest.Here(t, Command(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", args, err, want)
		}
	}
}
