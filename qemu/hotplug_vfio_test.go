package qemu

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestPlugVfio plugs a function into a QEMU that knows vfio-user and whose guest does not run. One
// with MSI-X is not to be unplugged.
func TestPlugVfio(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../tools/qemu.sh").Output()
	need(t, err == nil, "tools/qemu.sh: "+errText(err))
	dir := t.TempDir()
	v := NewVfioUser("test", testCID, VhostOptions{})
	defer v.Close()
	l := Line{Name: "x", Memory: 64 << 20, Accel: TCG, HotPlug: 2, Monitor: filepath.Join(dir, "qmp")}
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
