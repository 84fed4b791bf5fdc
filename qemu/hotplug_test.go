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

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestQEMUStaysAsItWasAfterARefusedPlug: a real QEMU that refuses to plug something in is unchanged
// afterwards.
func TestQEMUStaysAsItWasAfterARefusedPlug(t *testing.T) {
	_, err := exec.LookPath("qemu-system-x86_64")
	need(t, err == nil, "qemu-system-x86_64 is not installed")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, ports := range []int{0, 1} {
		l := CommandLine{Name: "x", Memory: 64 << 20, Accel: TCG, Vsock: "unused", HotPlug: ports, Monitor: filepath.Join(t.TempDir(), "qmp")}
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

// TestFunctionIsPluggedIntoARunningQEMU: a function can be plugged into a QEMU with vfio-user whose
// guest does not run. A function with MSI-X must not be unplugged.
func TestFunctionIsPluggedIntoARunningQEMU(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../tools/qemu.sh").Output()
	need(t, err == nil, "tools/qemu.sh: "+errText(err))
	dir := t.TempDir()
	v := NewVfioUser("test", testCID, VhostOptions{})
	defer v.Close()
	l := CommandLine{Name: "x", Memory: 64 << 20, Accel: TCG, HotPlug: 2, Monitor: filepath.Join(dir, "qmp")}
	for i, msi := range []bool{false, true} {
		look := vfioTestLook
		look.MSI = msi
		f := Vfio{Function: []string{"pf0.vf1", "pf0.vf2"}[i], Socket: filepath.Join(dir, []string{"1", "2"}[i]), MSI: msi}
		if err := v.AddFunction(vfioTestFunction+uint32(i), abi.FunctionVF, f.Socket, look); err != nil {
			t.Fatal(err)
		}
		l.Vfio = append(l.Vfio, f)
	}
	later := l.Vfio
	l.Vfio = later[:1]
	groups, err := l.Options()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-S", "-nodefaults", "-serial", "none", "-monitor", "none"}
	for _, g := range groups {
		if !strings.Contains(g[len(g)-1], vfioDriver) {
			args = append(args, g...)
		}
	}
	cmd := exec.CommandContext(ctx, strings.TrimSpace(string(out)), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var q *QMP
	for q == nil {
		if q, err = DialQMP(ctx, l.Monitor); err != nil && (ctx.Err() != nil || !strings.Contains(err.Error(), "does not run")) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	defer q.Close()
	// One only: a QEMU that has not run firmware does not say what is behind a root port.
	if err := PlugVfio(ctx, q, later[1]); err != nil {
		t.Fatal(err)
	}
	s, err := Inspect(ctx, q)
	if err != nil || len(s.Devices) != 1 || s.Devices[0].ID != "pf0.vf2" || s.Devices[0].Driver != vfioDriver || s.Devices[0].Backend != "vfio-user" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := UnplugVfio(ctx, q, later[0]); err == nil || !strings.Contains(err.Error(), "interrupts: msi") {
		t.Errorf("MSI-X: %v", err)
	}
	v.mu.Lock()
	g := v.functions[vfioTestFunction+1]
	v.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.dma.ranges) == 0 {
		t.Error("the function has no memory of its QEMU")
	}
}
