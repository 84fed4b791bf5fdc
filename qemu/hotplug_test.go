package qemu

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPlugRefuses asks real QEMUs for what they cannot do; each stays as it was.
func TestPlugRefuses(t *testing.T) {
	_, err := exec.LookPath("qemu-system-x86_64")
	need(t, err == nil, "qemu-system-x86_64 is not installed")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, ports := range []int{0, 1} {
		l := Line{Name: "x", Memory: 64 << 20, Accel: TCG, Vsock: "unused", HotPlug: ports, Monitor: filepath.Join(t.TempDir(), "qmp")}
		groups, err := l.Options()
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"-S", "-nodefaults", "-serial", "none", "-monitor", "none"}
		for _, g := range groups {
			if g[0] != "-chardev" && !strings.HasPrefix(g[len(g)-1], "vhost") { // there is no NIC
				args = append(args, g...)
			}
		}
		cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		var q *QMP
		for q == nil {
			if q, err = DialQMP(ctx, l.Monitor); err != nil && !strings.Contains(err.Error(), "does not run") {
				said, _ := io.ReadAll(out)
				t.Fatalf("%v %s", err, said)
			}
			time.Sleep(20 * time.Millisecond)
		}
		defer q.Close()
		want := map[string]error{
			"without root ports to plug into": PlugWindow(ctx, q, Window{"pf0.vf1", "/absent"}),
			"--hotplug N":                     PlugPort(ctx, q, Port{Function: "pf0.vf1", TAP: "lo"}),
		}
		if ports > 0 {
			want = map[string]error{
				"windows: true": PlugWindow(ctx, q, Window{"pf0.vf1", "/absent"}),
				// QEMU as root would make the TAP, and all would seem well.
				"there is no TAP absent0 where QEMU runs": PlugPort(ctx, q, Port{Function: "pf0.vf1", TAP: "absent0"}),
			}
		}
		want["pf0.vf1: the guest does not have it"] = UnplugWindow(ctx, q, Window{"pf0.vf1", "/absent"})
		for text, err := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%d ports: %v, want %q", ports, err, text)
			}
		}
		s, err := Inspect(ctx, q)
		if err != nil || s.State != "prelaunch" || s.HotPlug.Ports != ports || len(s.HotPlug.Free) != ports || len(s.Devices) != 0 || !s.Memory.Shared {
			t.Errorf("%+v %v", s, err)
		}
	}
}
