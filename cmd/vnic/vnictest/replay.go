package vnictest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ReplayElsewhere replays a recording with nothing of the machine that made it: as a user without rights, in a
// folder with the program and the file alone, without a network and an environment. It returns what the program
// says, which must be that what went out is what was recorded.
func ReplayElsewhere(t testing.TB, program, file string) string {
	t.Helper()
	dir := PublicFolder(t, "replay")
	for from, to := range map[string]string{program: "vnic", file: "rec"} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("./vnic", "replay", "rec")
	cmd.Dir, cmd.Env = dir, []string{"TZ=Asia/Tokyo"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "what went out is what was recorded") {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}
