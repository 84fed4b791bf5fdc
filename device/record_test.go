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
	for i := range r.Shards {
		on := r.Tape(i)
		p, err := shard.NewPlayer(i, cfg, on, slog.New(slog.DiscardHandler))
		for err == nil {
			_, err = p.Next()
		}
		st, _ := f.Stat()
		t.Logf("replayed %d Steps of shard %d of NIC %s in %d bytes", on.Steps(), i, r.NIC, st.Size())
		var d *tape.Difference
		if errors.As(err, &d) {
			t.Errorf("shard %d: %v, after %v", i, err, d.Before)
		} else if err != io.EOF {
			t.Errorf("shard %d: %v", i, err)
		}
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

// TestANICWithStreamsIsNotRecorded: the reason says so.
func TestANICWithStreamsIsNotRecorded(t *testing.T) {
	cfg, err := config.Parse([]byte("nic: {host: 1}\nrdma: {transport: iwarp}\nuplink: {name: up, address: 10.0.0.1/24}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Recordable(cfg); err == nil || !strings.Contains(err.Error(), "TCP") {
		t.Errorf("%v", err)
	}
}
