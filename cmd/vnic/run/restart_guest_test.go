package run_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLongGuestRestarts kills QEMU in the middle of its guest's work, and later the NIC under a
// running guest. Each time the same command, with the same socket, then serves a guest that
// attaches and works.
func TestLongGuestRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	g := workloadGuest(t, ctx)
	vnictest.InLab(t, true, func(l *vnictest.Lab) {
		h := l.Hosts[0]
		var consoles []string
		boot := func(args ...string) (*qemu.Process, *bufio.Scanner) {
			consoles = append(consoles, filepath.Join(l.Dir, fmt.Sprintf("console%d", len(consoles))))
			vm, err := qemu.Start(ctx, qemu.Machine{
				Memory: vnictest.GuestMemory, Kernel: g.Kernel, Initrd: g.Initrd, InitArgs: args,
				Vsock: h.Socket, Console: qemu.FileChardev(consoles[len(consoles)-1]),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = vm.Stop() })
			return vm, bufio.NewScanner(vm.Output())
		}
		defer func() {
			if t.Failed() {
				for _, c := range consoles {
					b, _ := os.ReadFile(c)
					t.Logf("%s:\n%s", c, b)
				}
			}
		}()
		// attached waits until the guest has printed that it is attached; it then waits for its
		// peer.
		attached := func(lines *bufio.Scanner) {
			t.Helper()
			if !lines.Scan() {
				t.Fatal("the guest said nothing")
			}
			if line, err := workload.DecodeOutput(lines.Bytes()); err != nil || line.Kind != workload.KindProgress {
				t.Fatalf("%q, %v", lines.Text(), err)
			}
			if f := l.VF(0); f.Attached != "vhost-user" || f.State != "READY" || f.MRs == 0 {
				t.Fatalf("%+v", f)
			}
		}
		work := h.WorkloadArgs(fmt.Sprintf("vsock://2:%d", abi.Port), 0)

		l.Start(0)
		vm, lines := boot(work...)
		attached(lines)
		if err := vm.Kill(); err != nil {
			t.Log(err)
		}
		l.Free(0)

		vm, lines = boot(work...)
		attached(lines)
		if err := l.NICs[0].Cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-l.NICs[0].Done
		if err := vm.Kill(); err != nil {
			t.Log(err)
		}

		l.Start(0)
		vm, lines = boot("guest", "info", "--json")
		var info string
		for lines.Scan() {
			info += lines.Text()
		}
		if err := vm.Wait(ctx); err != nil {
			t.Fatalf("%v; it said %q", err, info)
		}
		if !strings.Contains(info, `"function": "h1.pf0.vf1"`) {
			t.Errorf("guest info says %s", info)
		}
		l.Free(0)
	})
}
