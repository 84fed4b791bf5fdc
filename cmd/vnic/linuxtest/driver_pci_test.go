package linuxtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
)

// TestLongDriverPCI: the Linux driver works with functions that are PCI devices, one behind an
// IOMMU with MSI-X, the other without an IOMMU and with MSI, of which its kernel provides one
// vector. The device is reset, unbound and bound again, unplugged and plugged in again; programs
// run each time.
func TestLongDriverPCI(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{packages: []string{"pciutils", "ethtool"}})
	m.Binary = vnictest.NewQEMU(t, ctx)
	translated, plain := m, m
	translated.IOMMU, plain.HotPlug = true, 1
	msi := func(l *vnictest.Lab) { l.Rewrite(1, "type: vfio-user,", "type: vfio-user, pci: {interrupts: msi},") }
	makeDriverLab(t, vnictest.Options{PCI: true}, [2]qemu.Machine{translated, plain}, msi, func(l *driverLab) {
		defer l.keepConsoles()
		for i, g := range l.guests {
			said := g.must("lspci -vvnnk -d 1af4:10f0")
			t.Logf("%s", said)
			for _, want := range []string{"Ethernet controller", "FLReset+", "Kernel driver in use: vnic", []string{"MSI-X: Enable+", "MSI: Enable+"}[i]} {
				if !strings.Contains(said, want) {
					t.Errorf("lspci of %s lacks %q", g.name, want)
				}
			}
			if said := g.must("ethtool -i $(cat /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0)"); !strings.Contains(said, "driver: virtio_net") {
				t.Errorf("ethtool -i of the interface behind the function:\n%s", said)
			}
			if said := g.must("rdma link"); !strings.Contains(said, "netdev eth0") {
				t.Errorf("rdma link:\n%s", said)
			}
			g.must("echo 1af4 1234 >/sys/bus/pci/drivers/vnic/new_id") // as docs/linux.md says
			if said := g.must("ibv_devinfo"); !strings.Contains(said, "0x1af4") || !strings.Contains(said, "PORT_ACTIVE") {
				t.Errorf("ibv_devinfo:\n%s", said)
			}
		}
		for _, p := range shortPrograms {
			l.program(t, p)
		}
		again := shortPrograms[1] // with events
		for i, g := range l.guests {
			dev := g.must("readlink -f /sys/class/infiniband/*/device")
			if way := g.must("cat " + dev + "/reset_method"); !strings.Contains(way, "flr") {
				t.Errorf("ways to reset %s: %s", dev, way)
			}
			l.whileUsed(t, i, fmt.Sprintf("echo flr >%[1]s/reset_method; echo 1 >%[1]s/reset", dev))
			l.ready(i)
			l.program(t, again)
			bus := "/sys/bus/pci/drivers/vnic/"
			g.must(fmt.Sprintf("basename %s >%sunbind; ls /sys/class/infiniband | wc -l | grep -q 0", dev, bus))
			g.must(fmt.Sprintf("basename %s >%sbind", dev, bus))
			l.ready(i)
			g.must("rmmod vnic && insmod /root/vnic.ko")
			l.ready(i)
			l.program(t, again)
		}
		l.replug(t, ctx)
		l.program(t, again)
	})
}

// whileUsed does something to guest i's function while programs of both guests use it. They end
// with an error, and soon.
func (l *driverLab) whileUsed(t testing.TB, i int, command string) {
	t.Helper()
	const endless = "ibv_rc_pingpong {dev} -g {gid} -e -n 100000000" // one that only polls hears of nothing
	begin := func(g *shell, program string) {                        // no job of the shell's, which would tell of its end
		g.must(fmt.Sprintf("rm -f /tmp/busy; ((timeout 100 %s >/tmp/used 2>&1; echo $? >/tmp/busy) 2>/dev/null &)", program))
	}
	begin(l.guests[1], l.expand(1, endless))
	l.guests[1].eventually("ss -ltn | grep -w 18515")
	begin(l.guests[0], l.expand(0, endless+" {peer}"))
	for _, g := range l.guests {
		g.eventually("rdma res show qp | grep -q 'type RC state RTS'")
	}
	l.guests[i].must("! test -e /tmp/busy && " + command)
	g := l.guests[i]
	g.eventually("test -s /tmp/busy")
	if rc, _ := g.run("cat /tmp/busy"); rc == "0" || rc == "124" {
		said, _ := g.run("cat /tmp/used")
		t.Errorf("%s: a program that used the function ended with %s:\n%s", g.name, rc, said)
	}
	l.guests[1-i].eventually("pkill ibv_rc_pingpong; test -s /tmp/busy")
}

// replug takes the second guest's function away while it runs, and gives it back.
func (l *driverLab) replug(t testing.TB, ctx context.Context) {
	t.Helper()
	var m qemu.Machine
	if err := l.Hosts[1].Attach(&m); err != nil {
		t.Fatal(err)
	}
	f, g, q := m.Vfio[0], l.guests[1], l.vms[1].QMP()
	if err := qemu.UnplugVfio(ctx, q, f); err != nil {
		t.Fatal(err)
	}
	if said := g.must("ls /sys/class/infiniband; lspci -d 1af4:10f0"); said != "" {
		t.Errorf("of an unplugged function is left:\n%s", said)
	}
	if err := qemu.PlugVfio(ctx, q, f); err != nil {
		t.Fatal(err)
	}
	l.ready(1)
}
