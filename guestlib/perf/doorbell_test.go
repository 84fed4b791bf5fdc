package perf

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
)

// TestDoorbellsMeasuresEveryPath: the client gets a row for each path, and the server none.
func TestDoorbellsMeasuresEveryPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	server := make(chan error, 1)
	go func() {
		costs, err := Doorbells(t.Context(), Config{URL: "unix://" + path, Iterations: 20})
		if len(costs) > 0 {
			t.Errorf("the server has %+v", costs)
		}
		server <- err
	}()
	for nic.Session(0) == nil { // it numbers functions by arrival
		time.Sleep(time.Millisecond)
	}
	peer, _ := guestlib.ParseGID("10.0.0.1")
	costs, err := Doorbells(t.Context(), Config{URL: "unix://" + path, Peer: peer, Iterations: 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-server; err != nil {
		t.Fatal(err)
	}
	if len(costs) != len(doorbellPaths) {
		t.Fatalf("%+v", costs)
	}
	for _, c := range costs {
		if c.Path != "unix" || c.Latency.Samples != 20 || c.Latency.DoorbellUS <= 0 || c.Write64US <= 0 || c.Posts < 20 {
			t.Errorf("%+v", c)
		}
	}
}
