package run_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// The fault that is put into a copy of the engine: the number of a packet is taken for a byte, and 0 for
// none. So the acknowledgement of a connection's packet 256 completes nothing.
const (
	faultIn  = "rdma/rof/initiator.go"
	healthy  = "	if s := i.tagged(ev.Tag); s != nil {\n		syn := ib.Syndrome(ev.ULPCode)\n		i.done("
	faulty   = "	if s := i.tagged(ev.Tag); s != nil && uint8(s.sn) != 0 {\n		syn := ib.Syndrome(ev.ULPCode)\n		i.done("
	huntPage = "../../../docs/record.md"
)

// faultyProgram builds the program with the fault in it.
func faultyProgram(t *testing.T, dir string) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(filepath.Join(root, faultIn))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(code), healthy) != 1 {
		t.Fatalf("%s has not the line that the fault is put into", faultIn)
	}
	changed, overlay, program := filepath.Join(dir, "faulty.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "faulty")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, faultIn): changed}})
	if err == nil {
		err = os.WriteFile(changed, []byte(strings.Replace(string(code), healthy, faulty, 1)), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "github.com/falcon-vnic/vnic/cmd/vnic")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestLongAFaultInTheEngineIsFoundFromARecording: the program with the fault records its NIC, whose
// driver comes to a halt. With the same program the recording shows the request that never completes;
// with the healthy one it shows the first Step that differs, with the packet and the connection.
// docs/record.md tells it.
func TestLongAFaultInTheEngineIsFoundFromARecording(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		bad, rec := faultyProgram(t, l.Dir), filepath.Join(l.Dir, "nic.rec")
		l.Program = filepath.Join(l.Dir, "recorded")
		script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --record %s\n", bad, rec)
		l.Must(os.WriteFile(l.Program, []byte(script), 0o755))
		l.Start(0)
		l.Program = ""
		l.Start(1)
		l.Joined()
		a := l.Client(0, 100_000)
		_ = l.Client(1, 100_000)
		a.Next(workload.KindProgress)
		said, story := "", ""
		vnictest.Eventually(t, "the recording differs from a healthy NIC", func() error {
			if _, err := l.Control(0).QPs(t.Context()); err != nil { // the shard takes a Step, too: chunks end with one
				return err
			}
			now := filepath.Join(l.Dir, "now.rec")
			b, err := os.ReadFile(rec)
			if err == nil {
				err = os.WriteFile(now, b, 0o600)
			}
			if err != nil {
				return err
			}
			var code int
			if story, said, code = vnictest.Run(t, "replay", now); code == 0 {
				return fmt.Errorf("%s", story)
			}
			return nil
		})
		l.NICs[0].Stop(30 * time.Second)
		b, err := exec.Command(bad, "replay", rec, "--trace", "pf0.vf1").CombinedOutput()
		trace := string(b)
		if err != nil || !strings.Contains(trace, "what went out is what was recorded") {
			t.Errorf("the faulty program: %v\n%.2000s", err, trace)
		}
		hung := regexp.MustCompile(`(?m)^\S+  h1\.pf0\.vf1 requester .*NOT COMPLETE.*\n(  .*\n)*`).FindString(trace)
		if hung == "" || strings.Contains(hung, "acked") || strings.Contains(hung, "cqe_written") {
			t.Errorf("no request was sent and never acknowledged:\n%s", hung)
		}
		t.Logf("%s\n%s%s", hung, story, said)
		b, err = os.ReadFile(huntPage)
		l.Must(err)
		for _, line := range storyLines {
			at := regexp.MustCompile(line)
			if !at.MatchString(hung + story + said) {
				t.Errorf("the programs do not say %s", line)
			}
			if !at.Match(b) {
				t.Errorf("docs/record.md does not say %s", line)
			}
		}
		last := regexp.MustCompile(`Step (\d+), \S+  in .*\n$`).FindStringSubmatch(story)
		if last == nil || !strings.Contains(said, "in Step "+last[1]+",") {
			t.Errorf("the packet that came is not the last thing before the difference:\n%s%s", story, said)
		}
	})
}

// storyLines are what docs/record.md tells of the hunt, and what the programs say in each.
var storyLines = []string{
	`h1\.pf0\.vf1 requester QP \S+  .* WQE \d+ wr_id \S+  falcon  NOT COMPLETE`,
	`out PushData PSN \d+ .*: h1\.pf0\.vf1 QP \d+, .*, SN 256, WQE \d+`,
	`in  .* CID \S+: h1\.pf0\.vf1 QP \d+`,
	`vnic: shard 0: the recording goes on with ".*", the replay with "memory written" in Step \d+, at `,
}
