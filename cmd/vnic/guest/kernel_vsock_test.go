package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/qemu"
)

// TestLongKernelVsockWorkload runs the workload of TestLongAttachPaths over the kernel's AF_VSOCK.
// Everything runs in a stock Debian guest: the NIC, and its clients over vsock loopback and a unix
// socket.
func TestLongKernelVsockWorkload(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	kernel, initrd := vnictest.GuestOfTest(t, ctx, "vsock_loopback", "vhost_vsock")
	dir := t.TempDir()
	console := filepath.Join(dir, "console")
	p, err := qemu.Start(ctx, qemu.Machine{
		Name: "vnic-vsock", Memory: 512, CPUs: 2, Kernel: kernel, Initrd: initrd, Console: qemu.FileChardev(console),
		InitArgs: []string{"-test.v", "-test.run=^TestInsideKernelVsock$"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	stop := context.AfterFunc(ctx, func() { p.Stop() })
	defer stop()
	out, err := io.ReadAll(p.Output())
	if t.Logf("%s", out); err != nil || !strings.Contains(string(out), "--- PASS: TestInsideKernelVsock") {
		log, _ := os.ReadFile(console)
		t.Errorf("%v; console:\n%s", err, log)
	}
}

const kernelVsockConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
rdma: {mtu: 4096}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {unix: bare}}
attach:
  - {type: vsock, ram: [{cid: 1, file: %[1]s, layout: [{address: 0, size: 64M, offset: 0}]}]}
  - {type: unix, name: bare, socket: %[1]s.sock}
`

// TestInsideKernelVsock runs in the guest of TestLongKernelVsockWorkload.
func TestInsideKernelVsock(t *testing.T) {
	if os.Getenv("VNIC_GUEST") == "" {
		t.Skip("runs in the guest of TestLongKernelVsockWorkload")
	}
	ram := "/tmp/ram"
	err := os.WriteFile(ram, nil, 0o600)
	if err == nil {
		err = os.Truncate(ram, 64<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	vnictest.ServeOn(t, fabric.New(4500), vnictest.WriteConfig(t, fmt.Sprintf(kernelVsockConfig, ram)))
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Minute)
	defer cancel()
	var both sync.WaitGroup
	for i, url := range []string{"vsock://1:7000?memory=" + ram, "unix://" + ram + ".sock"} {
		peer, err := guestlib.ParseGID(fmt.Sprintf("192.168.100.1%d", 2-i))
		if err != nil {
			t.Fatal(err)
		}
		both.Go(func() {
			var out bytes.Buffer
			if err := workload.Run(ctx, workload.Config{URL: url, PeerGID: peer, First: i == 0, Service: 4791, Count: 2, Out: &out}); err != nil {
				t.Errorf("%s: %v\n%s", url, err, &out)
			}
			verified, done := 0, false
			for line := range bytes.Lines(out.Bytes()) {
				l, err := workload.DecodeOutput(line)
				if err != nil {
					t.Error(err)
				}
				if l.Kind == workload.KindResult && l.Result.Verified {
					verified++
				}
				done = done || l.Kind == workload.KindDone
			}
			if verified < 20 || !done {
				t.Errorf("%s: %d verified rows, done %t\n%s", url, verified, done, &out)
			}
			t.Logf("%s: %d rows verified", url, verified)
		})
	}
	both.Wait()
}
