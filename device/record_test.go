package device

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// taped makes NICs of tests be recorded, and replayed when they have stopped.
var taped = flag.Bool("taped", false, "record the NICs of tests, and replay them when they have stopped")

// useTapes makes NICs that start be recorded and replayed until the test ends.
func useTapes(t testing.TB) {
	before := *taped
	*taped = true
	t.Cleanup(func() { *taped = before })
}

// recorded returns what makes a NIC be recorded, and replays the recording when the NIC has stopped.
func recorded(t testing.TB, cfg *config.Config) record.Config {
	if !*taped || Recordable(cfg) != nil {
		return record.Config{}
	}
	file := filepath.Join(t.TempDir(), "recording")
	t.Cleanup(func() {
		if !t.Failed() {
			replay(t, file, cfg)
		}
	})
	return record.Config{File: file, Limit: 4 << 30}
}

// replay plays a recording to its end, and compares what the shard does.
func replay(t testing.TB, file string, cfg *config.Config) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := record.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	on := r.Tape(0)
	p, err := shard.NewPlayer(0, cfg, on, slog.New(slog.DiscardHandler))
	for err == nil {
		_, err = p.Next()
	}
	st, _ := f.Stat()
	t.Logf("replayed %d Steps of NIC %s in %d bytes", on.Steps(), r.NIC, st.Size())
	var d *tape.Difference
	if errors.As(err, &d) {
		t.Errorf("%v, after %v", err, d.Before)
	} else if err != io.EOF {
		t.Error(err)
	}
}

// TestARecordedNICDoesTheSameAgain records what these tests do with NICs that have threads, and
// replays it.
func TestARecordedNICDoesTheSameAgain(t *testing.T) {
	useTapes(t)
	for name, test := range map[string]func(*testing.T){
		"workload": testWorkload, "workload over RoCE": TestWorkloadOverRoCE, "faults": TestFaults, "fault rules": TestFaultRules, "replies": TestReplies,
	} {
		t.Run(name, test)
	}
}

// TestANICWithStreamsIsNotRecorded, nor one with several shards: the reason says so.
func TestANICWithStreamsIsNotRecorded(t *testing.T) {
	for text, want := range map[string]string{"rdma: {transport: iwarp}\n": "TCP", "nic: {host: 1, shards: 2}\n": "nic.shards"} {
		if !strings.Contains(text, "nic:") {
			text += "nic: {host: 1}\n"
		}
		cfg, err := config.Parse([]byte(text + "uplink: {name: up, address: 10.0.0.1/24}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := Recordable(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}
