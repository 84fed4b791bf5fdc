package run_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// follower reads a guest's output.
type follower struct {
	mu         sync.Mutex
	operations int // verified
	wrong      []string
	last       string
	recovered  int
	end        chan workload.Output // the last line
}

func follow(r io.Reader) *follower {
	f := &follower{end: make(chan workload.Output, 1)}
	go func() {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if line, err := workload.DecodeOutput(lines.Bytes()); err == nil {
				f.hear(line)
			}
		}
		f.finish(workload.Output{Kind: workload.KindError, Text: "it ended without a last line"})
	}()
	return f
}

func (f *follower) hear(line workload.Output) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = line.Text
	switch line.Kind {
	case workload.KindResult:
		if line.Result.Verified {
			f.operations += line.Result.Count
		} else {
			f.wrong = append(f.wrong, fmt.Sprintf("%+v", *line.Result))
		}
	case workload.KindProgress:
		if len(line.Text) > 9 && line.Text[:9] == "recovered" {
			f.recovered++
		}
	case workload.KindDone, workload.KindError:
		f.finish(line)
	}
}

// finish keeps the guest's last line; later calls do nothing.
func (f *follower) finish(line workload.Output) {
	select {
	case f.end <- line:
	default:
	}
}

func (f *follower) verified() int { return f.now().operations }

// account is what a guest has reported so far.
type account struct {
	operations, recovered int
	wrong                 []string
	last                  string
}

func (f *follower) now() account {
	f.mu.Lock()
	defer f.mu.Unlock()
	return account{f.operations, f.recovered, f.wrong, f.last}
}

// surviveLosses kills and upgrades the workers of both NICs in turn while two guests work. After
// each loss the guests verify more operations, and at last both finish.
func surviveLosses(l *vnictest.Lab, guests [2]*follower, times int) {
	t := l.T
	total := func() int { return guests[0].verified() + guests[1].verified() }
	more := func(since int) {
		t.Helper()
		vnictest.Eventually(t, "more operations verified", func() error {
			if n := total(); n <= since {
				return fmt.Errorf("%d, as before; %q, %q", n, guests[0].now().last, guests[1].now().last)
			}
			return nil
		})
	}
	more(0)
	for i := range times {
		host := i % 2
		n := l.NIC(host, 0)
		if i%3 == 2 {
			if out, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[host].Control); code != 0 {
				t.Fatalf("exit status %d: %s%s", code, out, errs)
			}
		} else if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		before := total()
		if next := l.NIC(host, n.Worker); next.PID != n.PID {
			t.Fatalf("%+v after %+v", next, n)
		}
		more(before)
	}
	for i, g := range guests {
		select {
		case line := <-g.end:
			if line.Kind != workload.KindDone {
				t.Errorf("guest %d: %s", i+1, line.Text)
			}
		case <-time.After(vnictest.Limit):
			t.Fatalf("guest %d does not come to its end; the last it said: %q", i+1, g.now().last)
		}
		said := g.now()
		if len(said.wrong) > 0 {
			t.Errorf("guest %d: %q", i+1, said.wrong)
		}
		t.Logf("guest %d: %d operations verified, %d recoveries", i+1, said.operations, said.recovered)
	}
	if a, b := guests[0].now().recovered, guests[1].now().recovered; a+b < times {
		t.Errorf("%d losses, and the guests recovered %d and %d times", times, a, b)
	}
}

// TestClientsSurvive is TestGuestsSurvive with bare clients.
func TestClientsSurvive(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		var guests [2]*follower
		for i, h := range l.Hosts {
			cmd := exec.Command(vnictest.Program(t), h.WorkloadArgs("unix://"+h.Socket, 30)...)
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cmd.Stdout = in
			p, err := labkit.StartCommand(h.Guest(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			in.Close()
			defer p.Stop(5 * time.Second)
			guests[i] = follow(out)
		}
		surviveLosses(l, guests, 6)
	})
}

// TestGuestsSurvive: the workers of two NICs are killed and upgraded under QEMU guests with
// windows. The guests go on without a reboot.
func TestGuestsSurvive(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*vnictest.Limit)
	defer cancel()
	g := workloadGuest(t, ctx)
	vnictest.InLab(t, true, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		var guests [2]*follower
		for i, h := range l.Hosts {
			var stop func()
			stop, guests[i] = bootGuest(l, ctx, g, i, h.WorkloadArgs(guestURL, 20)...)
			defer stop()
		}
		surviveLosses(l, guests, 5)
	})
}

// guestURL is the device URL of a guest with one function.
var guestURL = fmt.Sprintf("vsock://2:%d", abi.Port)

// workloadGuest builds a guest that runs a vnic command.
func workloadGuest(t *testing.T, ctx context.Context) vnictest.Guest {
	t.Helper()
	vnictest.RequireGuests(t)
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	vnictest.Require(t, err == nil, fmt.Sprint("no guest kernel: ", err))
	initrd := filepath.Join(t.TempDir(), "initramfs.cpio")
	if err := (image.Initramfs{Kernel: k, Init: vnictest.Program(t), Modules: image.VsockModules}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	return vnictest.Guest{Kernel: k.Boot(), Initrd: initrd}
}

// bootGuest boots the guest of host i, with windows, and follows its output.
func bootGuest(l *vnictest.Lab, ctx context.Context, g vnictest.Guest, i int, command ...string) (stop func(), said *follower) {
	l.T.Helper()
	h := l.Hosts[i]
	console := filepath.Join(l.Dir, fmt.Sprintf("console%d", i))
	m := qemu.Machine{Memory: vnictest.GuestMemory, Kernel: g.Kernel, Initrd: g.Initrd, Console: qemu.FileChardev(console), InitArgs: command}
	if err := h.Attach(&m); err != nil {
		l.T.Fatal(err)
	}
	vm, err := qemu.Start(ctx, m)
	if err != nil {
		l.T.Fatal(err)
	}
	return func() {
		_ = vm.Stop()
		if b, _ := os.ReadFile(console); l.T.Failed() {
			l.T.Logf("%s:\n%s", console, b)
		}
	}, follow(vm.Output())
}

func TestKilledTestsLeaveNothing(t *testing.T) {
	vnictest.RequireGuests(t)
	t.Run("clients", func(t *testing.T) { vnictest.KilledLeavesNothing(t, "TestClientsSurvive", "guest\x00workload", 2) })
	t.Run("guests", func(t *testing.T) { vnictest.KilledLeavesNothing(t, "TestGuestsSurvive", "qemu-system-", 2) })
}
