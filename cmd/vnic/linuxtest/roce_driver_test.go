package linuxtest_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/qemu"
)

// Two guests have the same programs, which do not know vnic. One uses VF 1 of NIC 1 through the
// Linux driver; the other has Soft-RoCE on its virtio-net device, as in roce_linux_test.go. So over
// the driver every stock program speaks RoCEv2 with Linux.

// wiredLab holds both guests; the first has the driver.
type wiredLab struct {
	*linuxLab
	guests [2]*shell
	vms    [2]*qemu.Process
	beside bool         // both have a virtio-net on a plain bridge too
	lossy  bool         // NICs lose packets of each other
	wire   string       // roce or iwarp, as counters begin
	lan    *netns.Space // where the stock guest's bridge is, if not here
	addr   [2]string    // the addresses by which programs find each other
	ip     [2]string    // of the GID
	dev    [2]string
	gid    [2]string // its index
}

// inWiredLab boots both guests and waits for their verbs devices.
func inWiredLab(t testing.TB, s linuxSetting, bound time.Duration, f func(l *wiredLab)) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	vnictest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	s.driver = true
	extras := driverExtras{modules: rxeModules, packages: []string{"libfabric-bin"}}
	if s.iwarp {
		extras = driverExtras{packages: nvmeExtras.packages, modules: slices.Concat(siwModules(t, ctx), nvmeExtras.modules)}
	}
	m := driverImage(t, ctx, extras)
	vnictest.Program(t)
	netns.Run(t, func() {
		l := &wiredLab{linuxLab: newLinuxNICs(t, ctx, s), beside: s.beside, lossy: s.impair != "", wire: s.wire()}
		defer l.stop()
		cfg, err := config.Load(filepath.Join(l.dir, "nic1.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		driver := m
		driver.Vsock = filepath.Join(l.dir, "guest1.sock")
		driver.Windows = []qemu.Window{{Function: "pf0.vf1", Socket: cfg.Attach[0].WindowSocket(cfg.FunctionsOf(1001)[0])}}
		l.bootShell(t, 0, driver, config.FunctionMAC("1", 0, 1).String())
		addresses := [2]string{"192.168.100.11", "192.168.100.22"}
		if s.outside != nil {
			l.mac, addresses[1] = "52:54:00:00:00:22", s.outside.address
			l.goOutside(t, s.outside.commands)
		}
		l.bootShell(t, 1, m, l.mac)
		for _, g := range l.guests {
			g.begin()
		}
		v6 := strings.Contains(s.gid, ":")
		for i, addr := range addresses {
			g := l.guests[i]
			g.must("ip addr flush dev eth0 scope global; ip addr add " + addr + "/24 dev eth0")
			// rdma_cm resolves neighbours from a link-local address, which the guest may not have
			// yet.
			g.must(fmt.Sprintf("ip addr add fe80::%[1]s/64 dev eth0 nodad; ip addr add fd00:100::%[1]s/64 dev eth0 nodad", addr[len(addr)-2:]))
			if s.outside != nil {
				g.must(s.outside.guests[i])
			}
			if i == 1 && s.iwarp {
				g.must("rdma link add siw0 type siw netdev eth0; ulimit -l unlimited") // which siw asks of root, too
			} else if i == 1 {
				g.must("rdma link add rxe0 type rxe netdev eth0")
			}
			l.addr[i], l.ip[i] = addr, addr
			gid := gidText(addr)
			if v6 {
				l.ip[i] = "fd00:100::" + addr[len(addr)-2:]
				gid = longAddr(l.ip[i])
			}
			if s.iwarp { // whose GIDs are no addresses
				g.eventually("ls /sys/class/infiniband | grep -q .")
				l.dev[i] = g.must("ls /sys/class/infiniband")
				continue
			}
			g.eventually(fmt.Sprintf("grep -qi %q /sys/class/infiniband/*/ports/1/gids/*", gid))
			l.dev[i] = g.must("ls /sys/class/infiniband")
			l.gid[i] = filepath.Base(g.must(fmt.Sprintf("grep -li %q /sys/class/infiniband/*/ports/1/gids/* | head -n 1", gid)))
		}
		f(l)
		(&driverLab{guests: l.guests}).sane(t)
	})
}

// longAddr is an IPv6 address as the kernel writes its GID.
func longAddr(addr string) string { return netip.MustParseAddr(addr).StringExpanded() }

// bootShell starts a guest behind bridge gbr1 or gbr2, with its console on a socket.
func (l *wiredLab) bootShell(t testing.TB, i int, m qemu.Machine, mac string) {
	t.Helper()
	const mtu = 4400
	var nic *os.File
	open := func() (err error) {
		nic, err = tap.OpenGuest(fmt.Sprintf("guest%d", i+1), fmt.Sprintf("gbr%d", i+1), mtu)
		return err
	}
	var err error
	if i == 1 && l.lan != nil {
		err = l.lan.Do(open)
	} else {
		err = open()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	console := filepath.Join(l.dir, fmt.Sprintf("console%d", i))
	m.Console = qemu.SocketChardev(console)
	m.NICs = []qemu.NIC{{TAP: nic, MAC: mac, MTU: mtu}}
	if l.beside {
		m.NICs = append(m.NICs, plainNIC(t, i))
		defer m.NICs[1].TAP.Close()
	}
	vm, err := qemu.Start(context.Background(), m)
	if err != nil {
		t.Fatal(err)
	}
	l.vms[i] = vm
	l.ends = append(l.ends, func() { _ = vm.Stop() })
	conn, err := net.Dial("unix", console)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l.guests[i] = &shell{t: t, conn: conn, name: [2]string{"driver", "stock guest"}[i]}
}
