package guest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf"
)

// TestLongQEMULineBoots runs the printed line as a shell would. The guest has two functions, and
// prints about the second which one it is, by which path doorbells and events go, and how long they
// take.
func TestLongQEMULineBoots(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g := vnictest.BuildGuest(t, ctx)
	for _, path := range []string{"vsock", "ivshmem", "ivshmem-msix"} {
		t.Run(path, func(t *testing.T) {
			config := vnictest.WriteConfig(t, fmt.Sprintf(qemuGuestConfig, t.TempDir(), path != "vsock"))
			vnictest.Serve(t, config)
			g.IOMMU = path == "ivshmem-msix"
			l := infoInGuest(t, ctx, config, g, path, "vsock://2:7000?function=pf0.vf2")
			if (l.ShadowUS > 0) != (path != "vsock") {
				t.Fatalf("%+v", l)
			}
			t.Logf("%+v", l)
		})
	}
}

// qemuGuestConfig has two guests, the first with two functions.
const qemuGuestConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1001}}
      - {vf: 3, tenant: 100, address: 192.168.100.13, guest: {cid: 1002}}
attach:
  - {type: vhost-user, socket: %s/g1.sock, cid: 1001, windows: %t}
  - {type: vhost-user, socket: %[1]s/g2.sock, cid: 1002, windows: %[2]t}
`

// infoInGuest boots the first guest, which runs vnic guest info on its second function by a URL.
// path is the path that it must report.
func infoInGuest(tb testing.TB, ctx context.Context, config string, g vnictest.Guest, path, url string) guestlib.Latency {
	tb.Helper()
	said, err := vnictest.BootPrinted(tb, ctx, config, g, 1001, "guest", "info", "--json", "--samples", "300", "--device", url)
	if err != nil {
		tb.Fatal(err)
	}
	var info struct {
		Function, Path string
		Tenant         uint32
		Latency        guestlib.Latency
	}
	if err := json.Unmarshal(said, &info); err != nil || info.Tenant != 100 || !strings.HasSuffix(info.Function, "pf0.vf2") {
		tb.Fatalf("%v: %s", err, said)
	}
	if l := info.Latency; info.Path != path || l.Samples != 300 || l.DoorbellUS <= 0 || l.WakeUS <= 0 {
		tb.Fatalf("%+v; want path %s", info, path)
	}
	return info.Latency
}

// guestCosts boots the two guests of a configuration. The first measures the device's latencies
// over each of the paths, the best one last. first and second are the URLs of their functions.
func guestCosts(tb testing.TB, ctx context.Context, config string, g vnictest.Guest, first, second string, paths ...string) []perf.Cost {
	tb.Helper()
	vnictest.Serve(tb, config)
	g.IOMMU = true
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, err := vnictest.BootPrinted(tb, ctx, config, g, 1002, "guest", "perf", "doorbell", "--wait", "2m", "--device", second)
		if err != nil {
			cancel()
		}
		ended <- err
	}()
	said, err := vnictest.BootPrinted(tb, ctx, config, g, 1001, "guest", "perf", "doorbell", "192.168.100.13", "--json", "--wait", "2m", "--device", first)
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-ended); err != nil {
		tb.Fatal(err)
	}
	return checkCosts(tb, said, paths...)
}

// ivshmemCosts is guestCosts for functions with windows, over vsock alone and then over the
// windows.
func ivshmemCosts(tb testing.TB, ctx context.Context, g vnictest.Guest) []perf.Cost {
	tb.Helper()
	config := vnictest.WriteConfig(tb, fmt.Sprintf(qemuGuestConfig, tb.TempDir(), true))
	return guestCosts(tb, ctx, config, g, "vsock://2:7000?function=pf0.vf1", "vsock://2:7000", "vsock", "ivshmem-msix")
}

// BenchmarkGuestLatency measures in guests how long it takes to reach the NIC and to be woken by
// it.
func BenchmarkGuestLatency(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	g := vnictest.BuildGuest(b, ctx)
	for b.Loop() {
		costs := ivshmemCosts(b, ctx, g)
		messages, window := costs[0], costs[1]
		b.ReportMetric(messages.Latency.DoorbellUS, "guest/doorbell_vsock_us")
		b.ReportMetric(messages.Latency.WakeUS, "guest/vsock_wake_us")
		b.ReportMetric(messages.Write64US, "guest/write64_vsock_us")
		b.ReportMetric(window.Latency.DoorbellUS, "guest/doorbell_ivshmem_us")
		b.ReportMetric(window.Latency.WakeUS, "guest/msix_wake_us")
		if window.ShadowUS > 0 {
			b.ReportMetric(window.ShadowUS, "guest/doorbell_shadow_us")
		}
		b.ReportMetric(window.Write64US, "guest/write64_shadow_us")
		b.ReportMetric(messages.Write64US/window.Write64US, "guest/write64_shadow_over_vsock")
	}
}

func TestKilledGuestLeavesNothing(t *testing.T) {
	vnictest.RequireGuests(t)
	vnictest.KilledLeavesNothing(t, "TestLongQEMULineBoots", "qemu-system-", 1)
}
