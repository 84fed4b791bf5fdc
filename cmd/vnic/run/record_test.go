package run_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/replay"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/guestlib/conform"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// TestARecordedNICIsReplayedByTheCommand records two NICs under the workload, one of which is killed,
// and replays both files: vnic replay says that what went out is what was recorded, and stops where it
// is told to.
func TestARecordedNICIsReplayedByTheCommand(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		files := [2]string{filepath.Join(l.Dir, "rec1"), filepath.Join(l.Dir, "rec2")}
		for i := range files {
			l.Program = filepath.Join(l.Dir, fmt.Sprint("recorded", i))
			script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --record %s\n", vnictest.Program(t), files[i])
			if err := os.WriteFile(l.Program, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			l.Start(i)
		}
		l.Joined()
		l.Works()
		a := l.Client(0, 100_000)
		_ = l.Client(1, 100_000)
		a.Next(workload.KindProgress)
		l.Must(l.NICs[1].Cmd.Process.Kill()) // its worker ends, and begins no other
		<-l.NICs[1].Done
		l.NICs[0].Stop(30 * time.Second)
		st, err := os.Stat(files[0])
		if err != nil || st.Mode() != 0o600 {
			t.Fatalf("%v, %v", err, st)
		}
		for _, file := range files {
			out, errs, code := vnictest.Run(t, "replay", file)
			if code != 0 || errs != "" || !strings.Contains(out, "what went out is what was recorded") {
				t.Errorf("exit status %d\n%s%s", code, out, errs)
			}
		}
		whole, _, _ := vnictest.Run(t, "replay", files[0])
		out, errs, code := vnictest.Run(t, "replay", files[0], "--until", "500")
		if code != 0 || !strings.Contains(out, "Step 500 at ") || !strings.Contains(out, "h1.pf0.vf1") {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
		}
		stepped, errs, code := ask(t, "n\nn 2\nbreak qp-error\nc 500\nshow connections\nlast 3\nshow nothing\nhelp\nq\nn\n", "replay", files[0], "--step")
		for _, want := range []string{"Step 1 at ", "Step 3 at ", "Step 500 at ", "CID", `show: unknown subject "nothing"; use one of functions, connections,`, "an empty line repeats"} {
			if code != 0 || errs != "" || !strings.Contains(stepped, want) {
				t.Errorf("exit status %d: no %q in\n%s%s", code, want, stepped, errs)
			}
		}
		traced, errs, code := vnictest.Run(t, "replay", files[0], "--trace", "pf0.vf1", "--until", "100000")
		if code != 0 || !strings.Contains(traced, "h1.pf0.vf1 requester QP 0x") || !strings.Contains(traced, "requester, WRITE, falcon: ") {
			t.Errorf("exit status %d\n%.2000s%s", code, traced, errs)
		}
		var is struct {
			NIC    string
			Shards []struct {
				Steps uint64
				Why   string
				State struct {
					Functions []control.Function
					Credits   []control.CreditNode
				}
			}
		}
		js, errs, code := vnictest.Run(t, "replay", files[0], "--until", fmt.Sprint(steps(t, whole)/2), "--json")
		if err := json.Unmarshal([]byte(js), &is); err != nil || code != 0 || len(is.Shards) != 1 {
			t.Fatalf("%v, exit status %d, %s\n%.1000s", err, code, errs, js)
		}
		state := &is.Shards[0].State
		if len(state.Functions) == 0 || len(state.Credits) == 0 || is.Shards[0].Steps != uint64(steps(t, whole)/2) {
			t.Errorf("%+v", is)
		}
		replayedElsewhere(t, files[0], whole)
		small := filepath.Join(l.Dir, "small")
		cut, errs, code := vnictest.Run(t, "replay", files[0], "--break", "DRV-206", "--reduce", small)
		if code != 1 || !strings.Contains(errs, "does not show it") {
			t.Errorf("exit status %d\n%s%s", code, cut, errs)
		}
		packets := filepath.Join(l.Dir, "packets.pcapng")
		if _, errs, code := vnictest.Run(t, "replay", files[0], "--capture", packets); code != 0 {
			t.Errorf("exit status %d\n%s", code, errs)
		}
		if st, err := os.Stat(packets); err != nil || st.Size() < 100_000 {
			t.Errorf("%v, %v", st, err)
		}
	})
}

// steps returns how many Steps a replay has had.
func steps(t *testing.T, said string) (n int) {
	t.Helper()
	_, rest, _ := strings.Cut(said, "shard 0: ")
	if _, err := fmt.Sscanf(rest, "%d Steps", &n); err != nil {
		t.Fatalf("%v in %q", err, said)
	}
	return n
}

// ask runs the program with text on its standard input.
func ask(t *testing.T, text string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(vnictest.Program(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// replayedElsewhere replays a recording with nothing of this machine, and with another version of the program.
func replayedElsewhere(t *testing.T, file, whole string) {
	t.Helper()
	_, ended, _ := strings.Cut(whole, "shard 0: ")
	ended, _, _ = strings.Cut(ended, ", to ") // the time of day is another
	if out := vnictest.ReplayElsewhere(t, vnictest.Program(t), file); !strings.Contains(out, ended) {
		t.Errorf("no %q in\n%s", ended, out)
	}
	before := device.Version
	device.Version = "v99"
	defer func() { device.Version = before }()
	out, err := vnictest.Here(t, replay.Command(), file)
	if err != nil || !strings.Contains(out, "this is vnic v99: it may behave differently from the one that was recorded") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestARecordingIsStartedAndStoppedByCommand: it begins with another worker, has what that worker did until then, and
// ends with the command or with the worker. Whatever is refused changes nothing.
func TestARecordingIsStartedAndStoppedByCommand(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		file := func(name string) string { return filepath.Join(l.Dir, name) }
		vnic := func(want int, args ...string) string {
			t.Helper()
			out, errs, code := vnictest.Run(t, append(args, "-s", l.Hosts[0].Control)...)
			if code != want {
				t.Fatalf("%v: exit status %d\n%s%s", args, code, out, errs)
			}
			return out + errs
		}
		replays := func(name string) int {
			t.Helper()
			out, errs, code := vnictest.Run(t, "replay", file(name))
			if code != 0 || errs != "" || !strings.Contains(out, "what went out is what was recorded") {
				t.Errorf("%s: exit status %d\n%s%s", name, code, out, errs)
			}
			return steps(t, out)
		}
		was := l.NIC(0, 0)
		l.Must(os.WriteFile(file("taken"), nil, 0o600))
		for _, name := range []string{file("taken"), file("none/here"), "/proc/here"} {
			vnic(1, "record", "start", name)
		}
		if said := vnic(1, "record", "stop"); !strings.Contains(said, "does not record") || l.NIC(0, 0).Worker != was.Worker {
			t.Errorf("worker %d, was %d: %s", l.NIC(0, 0).Worker, was.Worker, said)
		}
		vnic(0, "record", "start", file("first"), "--payload", "whole")
		is := l.NIC(0, was.Worker)
		if said := vnic(0, "show", "nic"); !strings.Contains(said, "records to "+file("first")) {
			t.Error(said)
		}
		if said := vnic(1, "record", "start", file("second")); !strings.Contains(said, "records to "+file("first")+" already") {
			t.Error(said)
		}
		l.Joined()
		l.Works()
		if said := vnic(0, "record", "stop"); said != file("first")+"\n" {
			t.Errorf("%q", said)
		}
		n := replays("first")
		l.Works() // and is in no recording
		if now := l.NIC(0, 0); now.Worker != is.Worker || now.Recording != "" {
			t.Errorf("worker %d records to %q, was %d", now.Worker, now.Recording, is.Worker)
		}
		if again := replays("first"); again != n || n < 100 {
			t.Errorf("%d Steps, then %d", n, again)
		}
		if st, err := os.Stat(file("first")); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v, %v", err, st)
		}
		vnic(0, "record", "start", file("second"))
		is = l.NIC(0, is.Worker)
		l.Must(syscall.Kill(is.Worker, syscall.SIGKILL))
		if now := l.NIC(0, is.Worker); now.Recording != "" {
			t.Errorf("the next worker records to %q", now.Recording)
		}
		replays("second")
	})
}

// TestALaterWorkerRecordsWhereNoFileIs: what is left of an earlier NIC does not keep a worker from starting, and is not
// written over. Without a folder for its file a later worker starts all the same, and says so.
func TestALaterWorkerRecordsWhereNoFileIs(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		dir := filepath.Join(l.Dir, "recorded")
		file := filepath.Join(dir, "rec")
		l.Must(os.Mkdir(dir, 0o700))
		l.Must(os.WriteFile(file+".2", []byte("earlier"), 0o600))
		l.Program = filepath.Join(l.Dir, "records")
		l.Must(os.WriteFile(l.Program, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\" --record %s\n", vnictest.Program(t), file), 0o755))
		l.Start(0)
		next := func() control.NIC {
			was := l.NIC(0, 0).Worker
			l.Must(syscall.Kill(was, syscall.SIGKILL))
			return l.NIC(0, was)
		}
		if is := next(); is.Recording != file+".3" || is.Starts != 2 {
			t.Errorf("%+v", is)
		}
		if b, err := os.ReadFile(file + ".2"); err != nil || string(b) != "earlier" {
			t.Errorf("%v, %q", err, b)
		}
		l.Must(os.Rename(dir, dir+"-moved"))
		if is := next(); is.Recording != "" || !strings.Contains(fmt.Sprint(is.Warnings), file+".3") {
			t.Errorf("%+v", is)
		}
	})
}

// TestTheRecorderSavesWhatLedToAFailure: when a driver breaks a rule, when the worker is killed, and when
// an operator asks. The files replay; a worker's is its own.
func TestTheRecorderSavesWhatLedToAFailure(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		dir := filepath.Join(l.Dir, "saved")
		l.Must(os.Mkdir(dir, 0o700))
		l.Rewrite(0, "nic: {", fmt.Sprintf("nic: {recorder: {size: 32M, folder: %s}, ", dir))
		l.Start(0)
		saved := func(why string) (file string) {
			vnictest.Eventually(t, "a recording because of "+why, func() error {
				list, err := filepath.Glob(filepath.Join(dir, "vnic_1_*_"+why+".rec"))
				if err == nil && len(list) != 1 {
					err = fmt.Errorf("%d files", len(list))
				}
				if err == nil {
					file = list[0]
				}
				return err
			})
			if st, err := os.Stat(file); err != nil || st.Mode() != 0o600 {
				t.Errorf("%v, %v", err, st)
			}
			return file
		}
		replays := func(file string, more ...string) string {
			out, errs, code := vnictest.Run(t, append([]string{"replay", file}, more...)...)
			if code != 0 || errs != "" {
				t.Errorf("exit status %d\n%s%s", code, out, errs)
			}
			return out
		}
		r, err := conform.Run(t.Context(), conform.Config{URL: "unix://" + l.Hosts[0].Socket + "?function=pf0.vf1", Wait: vnictest.Limit, Match: regexp.MustCompile("^stream.violations$")})
		l.Must(err)
		if failed := r.Failed(); len(failed) > 0 {
			t.Fatal(failed)
		}
		if out := replays(saved("violation_h1.pf0.vf1"), "--break", "violation"); !strings.Contains(out, "the driver of h1.pf0.vf1 broke DRV-") {
			t.Errorf("the rule is not found again in\n%s", out)
		}
		now := filepath.Join(l.Dir, "now.rec")
		if out, errs, code := vnictest.Run(t, "record", "save", now, "-s", l.Hosts[0].Control); code != 0 || !strings.HasPrefix(out, now+": ") {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
		}
		if out := replays(now); !strings.Contains(out, "what went out is what was recorded") {
			t.Error(out)
		}
		was := l.NIC(0, 0)
		l.Must(syscall.Kill(was.Worker, syscall.SIGKILL))
		if out := replays(saved("worker_1")); !strings.Contains(out, "what went out is what was recorded") {
			t.Error(out)
		}
		l.NIC(0, was.Worker)
		again := filepath.Join(l.Dir, "again.rec")
		if _, errs, code := vnictest.Run(t, "record", "save", again, "-s", l.Hosts[0].Control); code != 0 {
			t.Error(errs)
		}
		if out := replays(again); steps(t, out) >= steps(t, replays(saved("worker_1"))) {
			t.Errorf("the next worker did not begin anew:\n%s", out)
		}
	})
}

// TestARecordingWithoutABeginningIsListedByTheCommand, which says why it cannot run it.
func TestARecordingWithoutABeginningIsListedByTheCommand(t *testing.T) {
	r, err := record.NewRing(record.Config{Limit: 4096, Text: "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\n"}, record.Header{NIC: "nic1", Shards: 1, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	on := r.Tape(0)
	for n := range int64(1000) {
		on.Begin(tape.Step, n*1e9)
		for range 4 {
			on.PutUint(0)
		}
		on.Event(tape.InboxEnd)
		on.Check()
	}
	file := filepath.Join(t.TempDir(), "file")
	if _, err := r.Save(file); err != nil {
		t.Fatal(err)
	}
	out, errs, code := vnictest.Run(t, "replay", file)
	if code != 1 || !strings.Contains(errs, "shard 0: the recording has no beginning: the first ") || !strings.Contains(errs, "--list prints what is there") || out != "" {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	out, errs, code = vnictest.Run(t, "replay", file, "--list")
	if code != 0 || errs != "" || !regexp.MustCompile(`(?s)^NIC nic1, recorded by vnic test from .*\nshard 0:\n  Step (\d+), .*  Steps 1 to \d+ are missing\n$`).MatchString(out) {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
}

// TestReplayRefusesWhatIsNoRecording in one line.
func TestReplayRefusesWhatIsNoRecording(t *testing.T) {
	if out, errs, code := vnictest.Run(t, "replay", "record_test.go"); code != 1 || out != "" || !strings.Contains(errs, "not a recording") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
}
