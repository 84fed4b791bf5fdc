package device

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/guestlib/conform"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
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
	if !*taped {
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
	replayWatched(t, file, cfg, func(*shard.Player, tape.Kind, int64) {})
}

// replayWatched does so and calls watch after each event, with the time of the Step.
func replayWatched(t testing.TB, file string, cfg *config.Config, watch func(p *shard.Player, k tape.Kind, now int64)) (players []*shard.Player) {
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
			var k tape.Kind
			if k, err = p.Next(); err == nil {
				watch(p, k, on.Now())
			}
		}
		st, _ := f.Stat()
		t.Logf("replayed %d Steps of shard %d of NIC %s in %d bytes", on.Steps(), i, r.NIC, st.Size())
		var d *tape.Difference
		if errors.As(err, &d) {
			t.Errorf("shard %d: %v, after %v", i, err, d.Before)
		} else if err != io.EOF {
			t.Errorf("shard %d: %v", i, err)
		}
		players = append(players, p)
	}
	return players
}

// TestARecordedNICDoesTheSameAgain records what these tests do with NICs that have threads, and
// replays it.
func TestARecordedNICDoesTheSameAgain(t *testing.T) {
	useTapes(t)
	for name, test := range map[string]func(*testing.T){
		"workload": testWorkload, "workload over RoCE": TestWorkloadOverRoCE, "connections over iWARP": TestConnectionsOfListenAndConnectGoOverIWARP, "calls over iWARP": TestACallOverIWARPMayBeRejected,
		"a hostile peer over iWARP": TestAHostilePeerOverIWARPDisturbsNobody,
		"faults":                    TestADriverSeesEachFaultAndRecovers, "fault rules": TestFaultRulesAreRefusedListedAndRemoved, "replies": TestEachRequestIsAnsweredOnce,
	} {
		t.Run(name, test)
	}
}

// TestARecordingIsStoppedWhileTheNICWorks: each shard's is whole to the end of a Step, and the NIC goes on.
func TestARecordingIsStoppedWhileTheNICWorks(t *testing.T) {
	useTapes(t)
	useShards(t, 2)
	w := newWorld(t)
	stopped := make(chan error)
	go func() {
		_, err := w.nics[0].StopRecording(t.Context())
		stopped <- err
	}()
	runWorkload(t, w)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if _, err := w.nics[0].StopRecording(t.Context()); err == nil {
		t.Error("it can be stopped twice")
	}
}

// TestANICWithoutARecorderSaysSo to whoever asks for its recording.
func TestANICWithoutARecorderSaysSo(t *testing.T) {
	w := newWorld(t)
	if err := w.nics[0].Recording(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "nic.recorder") {
		t.Errorf("%v", err)
	}
}

// brokenAt returns when a driver broke the rule that a shard shows as v of function id: it is zero
// milliseconds old 999999 ns later, and one a nanosecond after that.
func brokenAt(s *shard.Shard, id pfvf.ID, v *control.Violation, at int64) bool {
	age := func(now int64) int64 {
		for _, is := range s.View().Objects.Violations(now, id) {
			if is.Clause == v.Clause && is.What == v.What && is.Ring == v.Ring && is.Queue == v.Queue {
				return is.AgeMS
			}
		}
		return -1
	}
	return age(at+999_999) == 0 && age(at+1_000_000) == 1
}

// brokenByTheKit runs checks of the conformance kit on a recorded NIC, and replays the recording: each
// rule that they make a driver break is broken again in the same Step, which is the one with the same
// time.
func brokenByTheKit(t *testing.T, checks string, rules ...string) *NIC {
	useTapes(t)
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(_ int, c *config.Config) { c.NIC.Strict = true })
	r, err := conform.Run(t.Context(), conform.Config{URL: "unix://" + w.sockets[0] + "?function=pf0.vf1", Wait: testTime, Match: regexp.MustCompile(checks)})
	must(t, err)
	if failed := r.Failed(); len(failed) > 0 {
		t.Fatal(failed)
	}
	n := w.nics[0]
	must(t, w.stop[0]())
	owner := n.cfg.ShardOf()(0, 1)
	live := n.units[owner].Shard
	id, err := pfvf.NewID(1, 0, 1)
	must(t, err)
	steps := map[int64]int{} // Steps of each time
	at := map[string]int64{} // when a rule was broken, as the replay has it
	noted := uint64(0)
	key := func(v *control.Violation) string { return fmt.Sprint(v.Clause, v.What, v.Ring, v.Queue) }
	again := replayWatched(t, n.deps.Record.File, n.cfg, func(p *shard.Player, k tape.Kind, now int64) {
		if p.Shard.Index() != owner {
			return
		}
		if k == tape.Step {
			steps[now]++
		}
		n := p.Shard.View().Objects.Noted(id)
		if n == noted { // to look takes more time than to play
			return
		}
		noted = n
		for _, v := range p.Shard.View().Objects.Violations(now, id) {
			if v.AgeMS == 0 && brokenAt(p.Shard, id, &v, now) {
				at[key(&v)] = now
			}
		}
	})
	list, broken := again[owner].Shard.View().Objects.Violations(0, id), map[string]bool{}
	for i := range list {
		v := &list[i]
		broken[v.Clause] = true
		if now := at[key(v)]; !brokenAt(live, id, v, now) || steps[now] != 1 {
			t.Errorf("%s %s: not broken at %d in the NIC; %d Steps have that time", v.Clause, v.Ring, now, steps[now])
		}
	}
	was := live.View().Objects.Violations(0, id)
	for i := range was {
		was[i].AgeMS, list[i].AgeMS = 0, 0
	}
	if !reflect.DeepEqual(was, list) {
		t.Errorf("the NIC has\n%+v\nthe replay\n%+v", was, list)
	}
	for _, rule := range rules {
		if !broken[rule] {
			t.Errorf("nobody broke %s", rule)
		}
	}
	t.Logf("%d rules: %v", len(broken), slices.Sorted(maps.Keys(broken)))
	return n
}

// TestARuleThatTheKitBreaksIsFoundAgainAtTheSameStep does so for some of its checks.
func TestARuleThatTheKitBreaksIsFoundAgainAtTheSameStep(t *testing.T) {
	brokenByTheKit(t, "^(stream.violations|registers.access|admin.unknown)$", "DRV-306", "DRV-801")
}

// TestLongEachRuleThatTheKitBreaksIsFoundAgainAtTheSameStep does so for all of them. The recording is
// then reduced to one that shows a single rule.
func TestLongEachRuleThatTheKitBreaksIsFoundAgainAtTheSameStep(t *testing.T) {
	n := brokenByTheKit(t, "", "DRV-306", "DRV-602", "DRV-801")
	f, err := os.Open(n.deps.Record.File)
	must(t, err)
	defer f.Close()
	r, err := record.Read(f)
	must(t, err)
	id, err := pfvf.NewID(1, 0, 1)
	must(t, err)
	var of *shard.Player
	noted := uint64(0)
	small, err := shard.Reduce(n.cfg.ShardOf()(0, 1), n.cfg, r.Tape(n.cfg.ShardOf()(0, 1)), func(p *shard.Player) bool {
		n := p.Shard.View().Objects.Noted(id)
		if p == of && n == noted {
			return false
		}
		of, noted = p, n
		return slices.ContainsFunc(p.Shard.View().Objects.Violations(0, id), func(v control.Violation) bool { return v.Clause == "DRV-709" })
	})
	must(t, err)
	if t.Log(small); small.Events*100 > small.WasEvents {
		t.Errorf("%s: more than a hundredth", small)
	}
}

// TestTheRecorderSavesWhatANICTook: it can be had at any time, and is saved when a function goes wrong: once for each
// function and reason. A recorder that cannot save says so, and the NIC goes on.
func TestTheRecorderSavesWhatANICTook(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "saved")
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(_ int, c *config.Config) {
		c.NIC.Recorder = &config.Recorder{Size: 8 << 20, Payload: "digest", Folder: folder}
	})
	n := w.nics[0]
	a, b := newEndpoint(t, w.open(0, "h1.pf0.vf1")), newEndpoint(t, w.open(1, "h2.pf0.vf1"))
	connect(t, a, b, 1)
	reads := func(b []byte) {
		t.Helper()
		r, err := record.Read(bytes.NewReader(b))
		if err != nil || r.Shards != *shards || r.NIC != n.cfg.NIC.Name {
			t.Errorf("%+v, %v", r, err)
		}
	}
	var now bytes.Buffer
	must(t, n.Recording(t.Context(), &now))
	reads(now.Bytes())

	id, err := pfvf.ParseID("h1.pf0.vf1")
	must(t, err)
	n.records.failed(id, "fault")
	w.until("a warning", func() bool { v, err := n.NIC(t.Context()); return err == nil && len(v.Warnings) == 1 })
	must(t, os.Mkdir(folder, 0o700))
	for range 3 {
		n.records.failed(id, "violation")
	}
	other, err := pfvf.ParseID("h1.pf0.vf2")
	must(t, err)
	n.records.failed(other, "violation")
	saved := func() (list []string) {
		list, _ = filepath.Glob(filepath.Join(folder, "*_h1.pf0.vf*.rec"))
		return list
	}
	w.until("both are saved", func() bool { return len(saved()) >= 2 })
	if list := saved(); len(list) != 2 {
		t.Errorf("%q", list)
	}
	for _, f := range saved() {
		b, err := os.ReadFile(f)
		must(t, err)
		reads(b)
	}
}

// TestARecordingBeginsWithANewWorker: what cannot be recorded is refused with the reason, and so is a recording where
// no worker can be replaced.
func TestARecordingBeginsWithANewWorker(t *testing.T) {
	w := newWorld(t)
	n := w.nics[0]
	for says, s := range map[string]control.RecordingStart{
		`payload "some": write digest, whole or none`: {File: "/file", Payload: "some"},
		"write a path that begins with /":             {File: "file"},
		"this NIC has none":                           {File: "/file"},
	} {
		if _, err := n.StartRecording(t.Context(), s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := n.StopRecording(t.Context()); err == nil {
		t.Error("a recording was ended that there is not")
	}
	if err := n.Recording(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "nic.recorder") {
		t.Error(err)
	}
	var begun string
	n.deps.StartRecording = func(file string, keep tape.Payload) error { begun = file + " " + keep.String(); return nil }
	if v, err := n.StartRecording(t.Context(), control.RecordingStart{File: "/file", Payload: "whole"}); err != nil || v.Name != n.cfg.NIC.Name || v.Recording != "" || begun != "/file whole" {
		t.Errorf("%s, %q, %v", v.Name, begun, err)
	}
	n.deps.StartRecording = func(string, tape.Payload) error { return errors.New("the disk is full") }
	if _, err := n.StartRecording(t.Context(), control.RecordingStart{File: "/file"}); err == nil || err.Error() != "the disk is full" {
		t.Error(err)
	}
}
