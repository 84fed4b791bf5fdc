package guest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/perf"
)

// vfioConfig has a guest with two functions that are PCI devices, and another guest with a third.
const vfioConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1001}}
      - {vf: 3, tenant: 100, address: 192.168.100.13, guest: {cid: 1002}}
attach:
  - {type: vfio-user, socket: %s/g1.sock, cid: 1001}
  - {type: vfio-user, socket: %[1]s/g2.sock, cid: 1002}
`

// TestVfioUserInGuest boots the printed line. The guest has no vsock; it reaches its second
// function as a PCI device, through an IOMMU and vfio-pci. The first function shares the slot.
func TestVfioUserInGuest(t *testing.T) { vfioInfo(t, true, "pci-msix") }

// TestLongVfioUserWithoutIOMMU: without an IOMMU the program maps the device from sysfs, and polls
// it for events.
func TestLongVfioUserWithoutIOMMU(t *testing.T) { vfioInfo(t, false, "pci") }

func vfioInfo(t *testing.T, iommu bool, path string) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g := vnictest.BuildGuest(t, ctx)
	g.IOMMU, g.QEMU = iommu, vnictest.NewQEMU(t, ctx)
	config := vnictest.WriteConfig(t, fmt.Sprintf(vfioConfig, t.TempDir()))
	vnictest.Serve(t, config)
	t.Logf("%+v", infoInGuest(t, ctx, config, g, path, "pci://?function=pf0.vf2"))
}

// vfioCosts is guestCosts for functions that are PCI devices.
func vfioCosts(tb testing.TB, ctx context.Context, g vnictest.Guest) []perf.Cost {
	tb.Helper()
	config := vnictest.WriteConfig(tb, fmt.Sprintf(vfioConfig, tb.TempDir()))
	return guestCosts(tb, ctx, config, g, "pci://?function=pf0.vf1", "pci://", "pci", "pci-msix")
}

// BenchmarkVfioLatency is BenchmarkGuestLatency for functions by vfio-user.
func BenchmarkVfioLatency(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	g := vnictest.BuildGuest(b, ctx)
	g.QEMU = vnictest.NewQEMU(b, ctx)
	for b.Loop() {
		window := vfioCosts(b, ctx, g)[1]
		b.ReportMetric(window.Latency.DoorbellUS, "guest/doorbell_vfio_us")
		b.ReportMetric(window.Latency.WakeUS, "guest/vfio_wake_us")
		b.ReportMetric(window.Write64US, "guest/write64_vfio_us")
	}
}
