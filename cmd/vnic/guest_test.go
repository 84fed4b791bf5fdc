package main

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

	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLongGuestRestarts kills QEMU in the middle of its guest's work, and later the
// NIC under a running guest. Each time the same command, on the same socket,
// serves a guest that attaches and works.
func TestLongGuestRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	g := workloadGuest(t, ctx)
	inLab(t, true, func(l *lab) {
		h := l.hosts[0]
		var consoles []string
		boot := func(args ...string) (*qemu.Process, *bufio.Scanner) {
			consoles = append(consoles, filepath.Join(l.dir, fmt.Sprintf("console%d", len(consoles))))
			vm, err := qemu.Start(ctx, qemu.Machine{
				Memory: guestMemory, Kernel: g.kernel, Initrd: g.initrd, InitArgs: args,
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
		// attached waits until the guest has said so: it is then waiting for its peer.
		attached := func(lines *bufio.Scanner) {
			t.Helper()
			if !lines.Scan() {
				t.Fatal("the guest said nothing")
			}
			if line, err := workload.DecodeOutput(lines.Bytes()); err != nil || line.Kind != workload.KindProgress {
				t.Fatalf("%q, %v", lines.Text(), err)
			}
			if f := l.vf(0); f.Attached != "vhost-user" || f.State != "READY" || f.MRs == 0 {
				t.Fatalf("%+v", f)
			}
		}
		work := h.workloadArgs(fmt.Sprintf("vsock://2:%d", abi.Port), 0)

		l.start(0)
		vm, lines := boot(work...)
		attached(lines)
		if err := vm.Kill(); err != nil {
			t.Log(err)
		}
		l.free(0)

		vm, lines = boot(work...)
		attached(lines)
		if err := l.nics[0].cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-l.nics[0].done
		if err := vm.Kill(); err != nil {
			t.Log(err)
		}

		l.start(0)
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
		l.free(0)
	})
}
