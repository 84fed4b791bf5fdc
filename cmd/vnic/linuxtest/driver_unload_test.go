package linuxtest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongDriverUnload removes the driver, and then the device, while programs and kernel users
// (NVMe, both sides) are at work. Nothing hangs, no kernel complains, and everything works again
// afterwards.
func TestLongDriverUnload(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx, nvmeExtras), func(l *driverLab) {
		defer l.keepConsoles()
		l.nvmeTarget(l.Hosts[1].TenantIP)
		for i, g := range l.guests {
			name := []string{"the host of a disk", "the target"}[i]
			pci := g.must("basename $(readlink /sys/class/infiniband/*/device)")
			for _, way := range []struct{ name, gone, back string }{
				{"unloads the driver", "rmmod vnic", loadDriver},
				{"loses the device", fmt.Sprintf("echo 1 >/sys/bus/pci/devices/%s/remove", pci), "echo 1 >/sys/bus/pci/rescan"},
			} {
				l.nvmeConnect()
				l.guests[0].must("dd if=/dev/nvme0n1 of=/dev/null bs=64k iflag=direct & dd if=/dev/zero of=/dev/nvme0n1 bs=4k oflag=direct 2>/dev/null &")
				l.guests[1].must(l.expand(1, "ib_send_bw {dev} -x {gid} -F -D 100 >/tmp/bw 2>&1 & sleep 1"))
				l.guests[0].must(l.expand(0, "ib_send_bw {dev} -x {gid} -F -D 100 {peer} >/tmp/bw 2>&1 & sleep 2; cat /sys/block/nvme0*n1/stat"))
				began := time.Now()
				g.must(fmt.Sprintf("timeout %d sh -c '%s'", int(slowly(100*time.Second).Seconds()), way.gone))
				t.Logf("%s %s: %v", name, way.name, time.Since(began).Round(10*time.Millisecond))
				g.must("test -z \"$(ls /sys/class/infiniband)\"")
				for _, each := range l.guests {
					each.run("kill $(jobs -p) 2>/dev/null; true")
				}
				g.must(way.back)
				for _, each := range l.guests {
					each.eventually(fmt.Sprintf("grep -qi %q /sys/class/infiniband/*/ports/1/gids/*", gidText(l.Hosts[map[*shell]int{l.guests[0]: 0, l.guests[1]: 1}[each]].TenantIP)))
				}
				l.guests[0].must("for f in /sys/class/nvme/nvme*/delete_controller; do test -e $f && echo 1 >$f; done; wait; true")
				if i == 1 { // its listener went with the device
					l.guests[1].must("cd /sys/kernel/config/nvmet/ports/1 && rm subsystems/disk && ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk; cd")
				}
				l.program(t, shortPrograms[0])
				l.sane(t)
			}
		}
	})
}
