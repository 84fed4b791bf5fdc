package linuxtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
)

// stockKernel has a guest's kernel say everything on its console, and what its tasks and processors
// do when it is asked by SysRq.
var stockKernel = []string{"ignore_loglevel", "sysrq_always_enabled"}

// report says how things are with NICs and guest of a test that failed: who is stuck cannot be told
// otherwise.
func (l *linuxLab) report(t testing.TB) {
	t.Helper()
	for host := 1; host <= l.hosts; host++ {
		for _, what := range []string{"counters", "functions", "connections", "qps", "queues", "routes", "uplinks"} {
			out, stderr, _ := vnictest.Run(t, "show", what, "-s", l.control(host))
			t.Logf("NIC %d: vnic show %s\n%s%s", host, what, out, stderr)
		}
	}
	if l.vm != nil {
		askKernel(t, l.vm)
	}
}

// askKernel has a guest print on its console what its processors and its tasks do. The keyboard's
// interrupt does that even where no program gets its turn.
func askKernel(t testing.TB, vm *qemu.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	type key struct {
		Type string `json:"type"`
		Data string `json:"data"`
	}
	for _, letter := range []string{"l", "w", "m", "t"} {
		keys := []key{{"qcode", "alt"}, {"qcode", "sysrq"}, {"qcode", letter}}
		if err := vm.QMP().Execute(ctx, "send-key", map[string]any{"keys": keys}, nil); err != nil {
			t.Logf("guest: SysRq %s: %v", letter, err)
			return
		}
		time.Sleep(time.Second) // the kernel has no answer to that
	}
}

// keepLog leaves a guest's console where VNIC_DRIVER_LOG says, else in the test's log.
func keepLog(t testing.TB, name string, text []byte) {
	if dir := os.Getenv("VNIC_DRIVER_LOG"); dir != "" {
		file := filepath.Join(dir, fmt.Sprintf("%s.%d.log", name, os.Getpid()))
		_ = os.WriteFile(file, text, 0o600)
		t.Logf("%s: %s", name, file)
		return
	}
	t.Logf("%s:\n%s", name, text)
}
