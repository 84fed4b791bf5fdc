package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
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

// pair runs both guests against one NIC and returns their lines and errors.
func pair(t *testing.T, nic *fakedev.Server, url string, cfg Config) (lines [2][]Output, errs [2]error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// The fake NIC numbers functions by arrival: the second guest starts when the first is
	// attached.
	var wg sync.WaitGroup
	var out [2]bytes.Buffer
	start := func(i int, peer string) {
		c := cfg
		c.URL, c.First, c.Out = url, i == 0, &out[i]
		c.PeerGID, _ = guestlib.ParseGID(peer)
		wg.Go(func() { errs[i] = Run(ctx, c) })
	}
	start(0, "10.0.0.2")
	for nic.Session(0) == nil && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	start(1, "10.0.0.1")
	wg.Wait()
	for i := range out {
		for line := range bytes.Lines(out[i].Bytes()) {
			l, err := DecodeOutput(line)
			if err != nil {
				t.Fatal(err)
			}
			lines[i] = append(lines[i], l)
		}
	}
	return lines, errs
}

func startNIC(t *testing.T, tamper func(abi.Opcode, []byte)) (*fakedev.Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	nic.Tamper = tamper
	t.Cleanup(func() { nic.Close() })
	return nic, "unix://" + path
}

// Both directions, all operations and sizes: every row verified.
func TestEveryOperationIsVerifiedInBothDirections(t *testing.T) {
	nic, url := startNIC(t, nil)
	lines, errs := pair(t, nic, url, Config{Service: 5})
	for i := range lines {
		if errs[i] != nil {
			t.Fatalf("guest %d: %v", i, errs[i])
		}
		rows := map[string][]int{}
		for _, l := range lines[i] {
			if l.Kind != KindResult {
				continue
			}
			r := l.Result
			rows[r.Op] = append(rows[r.Op], r.Size)
			if !r.Verified || r.Count < 3 || r.P50US <= 0 || r.MeanUS <= 0 || r.Size > 8 && r.MBps <= 0 { // a few bytes a millisecond round to 0
				t.Errorf("guest %d: %+v", i, r)
			}
		}
		sizes := []int{1, 64, 1000, 4096, 4097, 65536, 1 << 20}
		for _, op := range []string{"SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ"} {
			if !slices.Equal(rows[op], sizes) {
				t.Errorf("guest %d: %s of sizes %v", i, op, rows[op])
			}
		}
		for _, op := range []string{"CMP_SWAP", "FETCH_ADD", "MASKED_CMP_SWAP", "MASKED_FETCH_ADD"} {
			if !slices.Equal(rows[op], []int{8}) {
				t.Errorf("guest %d: %s of sizes %v", i, op, rows[op])
			}
		}
		if last := lines[i][len(lines[i])-1]; last.Kind != KindDone || !strings.Contains(last.Text, "39 rows") {
			t.Errorf("guest %d ends with %+v", i, last)
		}
	}
}

// Counts that need more than one round, because of receives or of memory.
func TestLargeCountsTakeSeveralRounds(t *testing.T) {
	nic, url := startNIC(t, nil)
	lines, errs := pair(t, nic, url, Config{Count: 2*maxRound + 5, Sizes: []int{3, 200000}})
	for i := range errs {
		if errs[i] != nil {
			t.Fatalf("guest %d: %v: %+v", i, errs[i], lines[i])
		}
	}
}

// A single wrong bit anywhere is found and reported, for each operation.
func TestTamperedDataIsFound(t *testing.T) {
	for _, op := range []guestlib.Opcode{guestlib.Send, guestlib.SendImm, guestlib.Write, guestlib.WriteImm, guestlib.Read} {
		t.Run(op.String(), func(t *testing.T) {
			hit := 0
			nic, url := startNIC(t, func(o abi.Opcode, data []byte) {
				if o == op && len(data) == 1001 {
					if hit++; hit == 7 {
						data[1000] ^= 0x10
					}
				}
			})
			lines, errs := pair(t, nic, url, Config{Ops: []guestlib.Opcode{op}, Sizes: []int{64, 1001}, Count: 10})
			if errs[0] == nil || errs[1] != nil {
				t.Fatal(errs)
			}
			for _, l := range lines[0] {
				if l.Kind != KindResult {
					continue
				}
				if l.Result.Verified != (l.Result.Size == 64) {
					t.Errorf("%+v", l.Result)
				}
				if l.Result.Size != 64 && !strings.Contains(l.Result.Problem, "byte 1000 of 1001") {
					t.Errorf("problem %q", l.Result.Problem)
				}
			}
			if last := lines[0][len(lines[0])-1]; last.Kind != KindError {
				t.Errorf("ends with %+v", last)
			}
		})
	}
}

// If the peer dies, the run soon ends with an error.
func TestTheRunEndsIfThePeerDies(t *testing.T) {
	var nic *fakedev.Server
	hits := 0
	nic, url := startNIC(t, func(op abi.Opcode, data []byte) {
		if hits++; hits == 20 {
			go func() { nic.Session(1).Hangup() }()
		}
	})
	_, errs := pair(t, nic, url, Config{Count: 500, Sizes: []int{64}})
	if errs[0] == nil || errs[1] == nil {
		t.Error(errs)
	}
}

func TestTheRunEndsIfNoPeerComes(t *testing.T) {
	_, url := startNIC(t, nil)
	peer, _ := guestlib.ParseGID("10.0.0.2")
	for _, first := range []bool{true, false} {
		err := Run(context.Background(), Config{URL: url, PeerGID: peer, First: first, MeetTimeout: 100 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "the peer did not come within 100ms") {
			t.Error(err)
		}
	}
}

func TestImpossibleConfigsAreRefused(t *testing.T) {
	for _, c := range []Config{
		{Sizes: []int{0}}, {Sizes: []int{maxSize + 1}}, {Count: -1}, {Count: 1<<20 + 1}, {Ops: []guestlib.Opcode{guestlib.SendInv}},
	} {
		if err := Run(context.Background(), c); err == nil || !strings.HasPrefix(err.Error(), "workload: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestDecodeLineRefusals(t *testing.T) {
	for _, s := range []string{"", "{", "[]", "{}", `{"kind":"other"}`, `{"kind":"result"}`} {
		if l, err := DecodeOutput([]byte(s)); err == nil {
			t.Errorf("%q: %+v", s, l)
		}
	}
	b, _ := json.Marshal(Output{Kind: KindDone, Text: "x"})
	if l, err := DecodeOutput(b); err != nil || l.Text != "x" {
		t.Error(l, err)
	}
}

// Any change of a pattern is found at its place, for every length.
func TestAChangedByteIsFoundAtItsPlace(t *testing.T) {
	for n := range 70 {
		b := make([]byte, n)
		k := key(1, guestlib.Write, n, 3)
		fill(b, k)
		if i := compare(b, k); i != -1 {
			t.Fatalf("%d bytes: differ at %d", n, i)
		}
		for i := range b {
			b[i] ^= 1
			if got := compare(b, k); got != i {
				t.Fatalf("%d bytes, %d changed: differ at %d", n, i, got)
			}
			b[i] ^= 1
		}
		fillCanary(b)
		if i := touched(b); i != -1 {
			t.Fatalf("%d canaries: touched at %d", n, i)
		}
		for i := range b {
			b[i]++
			if got := touched(b); got != i {
				t.Fatalf("%d canaries, %d changed: touched at %d", n, i, got)
			}
			b[i]--
		}
	}
}

func TestControlRoundTrip(t *testing.T) {
	want := control{kind: msgBegin, op: guestlib.FetchAdd, size: 8, first: 40, count: 20, seed: 1 << 60, problem: "p"}
	var got control
	if err := got.unmarshal(want.marshal()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range controlSize {
		if err := got.unmarshal(want.marshal()[:n]); err == nil {
			t.Errorf("%d bytes accepted", n)
		}
	}
	w := welcome{1 << 40, 7, 4096}
	var g welcome
	if err := g.unmarshal(w.marshal()); err != nil || g != w {
		t.Errorf("%+v, %v", g, err)
	}
	for n := range welcomeSize {
		if err := g.unmarshal(w.marshal()[:n]); err == nil {
			t.Errorf("welcome of %d bytes accepted", n)
		}
	}
}
