package linuxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongDriverWindows: the driver binds QEMU's ivshmem devices only after it was given their id,
// and only those whose memory begins like a window. It leaves other ivshmem devices alone.
func TestLongDriverWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{})
	m.HotPlug = 1
	inDriverLab(t, m, func(l *driverLab) {
		defer l.keepConsoles()
		g := l.guests[0]
		window := g.must("basename $(readlink /sys/class/infiniband/*/device)")
		bound := func(when, want string) {
			t.Helper()
			if got := g.must("ls /sys/bus/pci/drivers/vnic | grep ^0000: || true"); got != want {
				t.Errorf("%s the driver has %q, want %q", when, got, want)
			}
		}
		for _, c := range []struct {
			command string
			args    map[string]any
		}{
			{"object-add", map[string]any{"qom-type": "memory-backend-memfd", "id": "others", "size": 1 << 20, "share": true}},
			{"device_add", map[string]any{"driver": "ivshmem-plain", "id": "other", "memdev": "others", "bus": "hot0"}},
		} {
			if err := l.vms[0].QMP().Execute(ctx, c.command, c.args, nil); err != nil {
				t.Fatal(err)
			}
		}
		g.eventually("grep -l 0x1110 /sys/bus/pci/devices/*/device | wc -l | grep -q 2")
		bound("beside another ivshmem device", window)
		g.must("rmmod vnic; insmod /root/vnic.ko")
		bound("before it is told", "")
		g.must("echo 1af4 1110 >/sys/bus/pci/drivers/vnic/new_id")
		bound("when it is told", window)
		l.ready(0)
		l.program(t, shortPrograms[0])
	})
}
