package run_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
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
		out, errs, code := vnictest.Run(t, "replay", files[0], "--until", "500")
		if code != 0 || !strings.Contains(out, "Step 500 at ") || !strings.Contains(out, "h1.pf0.vf1") {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
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

// TestReplayRefusesWhatIsNoRecording in one line.
func TestReplayRefusesWhatIsNoRecording(t *testing.T) {
	if out, errs, code := vnictest.Run(t, "replay", "record_test.go"); code != 1 || out != "" || !strings.Contains(errs, "no recording") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
}
