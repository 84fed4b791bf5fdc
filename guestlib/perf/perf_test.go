package perf

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestMain(m *testing.M) { leak.Main(m) }

// pair runs server and client against one NIC.
func pair(t *testing.T, server, client Config) (rows [2][]Row, text [2]string, errs [2]error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client.Peer, _ = guestlib.ParseGID("10.0.0.1")
	var wg sync.WaitGroup
	for i, cfg := range []Config{server, client} {
		var b bytes.Buffer
		report := Report{W: &b, Test: cfg.Test}
		cfg.URL, cfg.Header, cfg.Row = "unix://"+path, report.Header, report.Row
		ended := make(chan struct{})
		wg.Go(func() {
			defer close(ended)
			rows[i], errs[i] = Run(ctx, cfg)
			text[i] = b.String()
		})
		for here := false; !here && nic.Session(i) == nil; { // it numbers functions by arrival
			select {
			case <-ended:
				here = true // and gone
			case <-time.After(time.Millisecond):
			}
		}
	}
	wg.Wait()
	return rows, text, errs
}

// TestEveryTestRunsInEachVariant runs every test in its variants.
func TestEveryTestRunsInEachVariant(t *testing.T) {
	for _, test := range Tests() {
		t.Run(test.String(), func(t *testing.T) {
			configs := map[string]Config{"plain": {Iterations: 50}}
			switch {
			case test.Op == Atomic:
				configs["swap"] = Config{Iterations: 50, CmpSwap: true, Events: true}
			default:
				configs["all"] = Config{Iterations: 20, All: true, Size: 4096}
			}
			if test.Op == Send {
				configs["events"] = Config{Iterations: 50, Events: true, RxDepth: 4}
			}
			if !test.Latency {
				configs["lanes"] = Config{Iterations: 130, QPs: 3, TxDepth: 16, CQMod: 5}
				configs["both"] = Config{Iterations: 60, QPs: 2, TxDepth: 8, Bidirectional: true, NoPeak: true}
				configs["while"] = Config{Duration: 500 * time.Millisecond, TxDepth: 8}
			}
			for name, client := range configs {
				t.Run(name, func(t *testing.T) {
					client.Test, client.Inline = test, -1
					rows, text, errs := pair(t, Config{Test: test, Events: client.Events, RxDepth: client.RxDepth}, client)
					if errs[0] != nil || errs[1] != nil {
						t.Fatal(errs)
					}
					_ = client.check()
					if len(rows[0]) != len(client.sizes()) || len(rows[1]) != len(rows[0]) {
						t.Fatalf("%d and %d rows, want %d", len(rows[0]), len(rows[1]), len(client.sizes()))
					}
					for i, size := range client.sizes() {
						r := rows[1][i]
						if r.Bytes != size || rows[0][i].Bytes != size {
							t.Errorf("row of %d and %d bytes, want %d", r.Bytes, rows[0][i].Bytes, size)
						}
						checkRow(t, &client, &r)
					}
					for _, out := range text {
						if want := test.Title(); !strings.Contains(out, want) || strings.Count(out, "\n") < 10 {
							t.Errorf("report without %q:\n%s", want, out)
						}
					}
				})
			}
		})
	}
}

func checkRow(t *testing.T, c *Config, r *Row) {
	t.Helper()
	directions := 1
	if c.Bidirectional {
		directions = 2
	}
	if want := c.Iterations * c.QPs * directions; c.Duration == 0 && r.Iterations != want {
		t.Errorf("%d iterations, want %d", r.Iterations, want)
	}
	switch {
	case c.Latency && !(r.TMin > 0 && r.TMin <= r.TTypical && r.TTypical <= r.T99 && r.T99 <= r.T999 && r.T999 <= r.TMax+1e-9):
		t.Errorf("latencies %+v", r)
	case !c.Latency && !(r.BWMBs > 0 && r.PeakMBs >= r.BWMBs && math.Abs(r.MsgRate*1e6*float64(r.Bytes)/mb-r.BWMBs) < 1e-6*r.BWMBs):
		t.Errorf("rates %+v", r)
	}
}

// TestPeerLeavesFirst: a peer whose message has arrived may leave before its acknowledgement of
// ours arrives. One that leaves earlier is an error.
func TestPeerLeavesFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	for _, received := range []bool{true, false} {
		dev, err := guestlib.Open(t.Context(), "unix://"+path, guestlib.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		pd, err := dev.AllocPD(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := newControl(t.Context(), dev, pd)
		if err != nil {
			t.Fatal(err)
		}
		session := nic.Session(0)
		if !received {
			session = nic.Session(1)
		}
		if received {
			c.ahead = &Row{}
		}
		qpn := c.qp.Num() // and the CQ was made before it: the fake NIC counts
		session.WriteCQE(qpn-1, abi.CQE{QPN: qpn, Opcode: abi.WCOpRecv, Status: abi.WCWRFlushErr})
		c.sent = 1
		if r, err := c.finishExchange(t.Context(), stall); (err == nil) != received || (r != nil) != received {
			t.Errorf("received %v: %v, %v", received, r, err)
		}
	}
}

// TestASideWaitsAsLongAsTheTestTakes, which may be an hour, and for any number of messages until the connection ends.
func TestASideWaitsAsLongAsTheTestTakes(t *testing.T) {
	for _, c := range []Config{{Duration: time.Hour}, {Iterations: 1e9}} {
		s := session{Config: &c}
		if got := s.patience(); got != 0 && got <= c.Duration {
			t.Errorf("%v for %+v", got, c)
		}
	}
}

// TestClientAndServerMustRunTheSameTest: if the client runs another test than the server, it gets that as the reason,
// and both end.
func TestClientAndServerMustRunTheSameTest(t *testing.T) {
	_, _, errs := pair(t, Config{Test: Test{Write, false}}, Config{Test: Test{Send, true}})
	if errs[0] == nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "client: send_lat, server: write_bw; start the same") {
		t.Error(errs)
	}
}

func TestImpossibleConfigsAreRefusedWithTheReason(t *testing.T) {
	for want, c := range map[string]Config{
		"write_lat: latency is measured on one queue pair":  {Test: Test{Write, true}, QPs: 2},
		"size: -1 is out of range":                          {Size: -1},
		"a duration is for one size; leave out --all":       {Duration: time.Second, All: true},
		"atomics have 8 bytes":                              {Test: Test{Atomic, false}, Size: 16},
		"compare and swap is for atomics":                   {CmpSwap: true},
		"iterations: 2 is out of range; use 5 to 134217728": {Iterations: 2},
		"completions moderated by: 9 is out of range":       {TxDepth: 8, CQMod: 9},
		"write_lat looks at memory, which sends no events":  {Test: Test{Write, true}, Events: true},
		"latency has no two directions":                     {Test: Test{Read, true}, Bidirectional: true},
		"a duration is for bandwidth tests; use iterations": {Test: Test{Send, true}, Duration: time.Second},
	} {
		if err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestStatisticsOfAKnownSeriesAreRight(t *testing.T) {
	times := []time.Duration{0}
	for i := range 1000 { // 1 to 1000 µs round trips
		times = append(times, times[i]+time.Duration(i+1)*time.Microsecond)
	}
	r := Row{Bytes: 64}
	r.latencies(times, 2)
	want := Row{Bytes: 64, TMin: 0.5, TMax: 499, TTypical: 250.5, TAvg: 249.75, T99: 495, T999: 499, Samples: r.Samples, TStdev: r.TStdev}
	for i, f := range r.fields() {
		if g := want.fields()[i]; math.Abs(*f-*g) > 0.6 {
			t.Errorf("field %d: %v, want %v", i, *f, *g)
		}
	}
	var back Row
	back.unmarshal(r.append(nil))
	for i, f := range back.fields() {
		if *f != *r.fields()[i] {
			t.Errorf("field %d does not come back", i)
		}
	}
	p := Row{Bytes: mb}
	p.peak([]time.Duration{0, 0, 2 * time.Second}, []time.Duration{time.Second, time.Second, 3 * time.Second}, 8)
	if p.PeakMBs != 2 {
		t.Errorf("peak %v MB/s, want 2", p.PeakMBs)
	}
}

// TestATestWithoutCompletionsFails: a test in which no message is completed fails, and prints no NaN.
func TestATestWithoutCompletionsFails(t *testing.T) {
	r := Row{Bytes: 64}
	if err := r.rates(0, 0); err == nil || !strings.Contains(err.Error(), "no message was completed") || r.BWMBs != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := r.rates(1000, time.Second); err != nil || r.MsgRate != 0.001 {
		t.Errorf("%+v, %v", r, err)
	}
}
