package linuxtest_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
)

// inIWARPLab is inDriverLab with NICs whose transport is iWARP. The first guest may have two functions.
func inIWARPLab(t testing.TB, bound time.Duration, extra driverExtras, second bool, f func(l *driverLab)) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	m := driverImage(t, ctx, extra)
	first, add := m, func(*vnictest.Lab) {}
	if second {
		first, add = withSecond(m)
	}
	change := func(l *vnictest.Lab) {
		add(l)
		for i := range l.Hosts {
			l.Rewrite(i, "rdma: {", "rdma: {transport: iwarp, ")
		}
	}
	bootDriverLab(t, vnictest.Options{Windows: true}, [2]qemu.Machine{first, m}, change, func(l *driverLab) {
		defer l.keepConsoles()
		for i := range l.guests {
			l.readyIWARP(i)
		}
		f(l)
	})
}

// readyIWARP waits until a guest has the RNIC of its function, and the function's address.
func (l *driverLab) readyIWARP(i int) {
	l.T.Helper()
	l.guests[i].eventually(fmt.Sprintf("grep -q ACTIVE /sys/class/infiniband/*/ports/1/state && grep -q RNIC /sys/class/infiniband/*/node_type && ip addr show dev eth0 | grep -q %s", l.Hosts[i].TenantIP))
}

// TestLongDriverIWARPNamespaces: functions of one NIC reach each other over iWARP, here of one guest in two
// network namespaces, in both modes of rdma system. A device is found by the interface that it is
// beside, also after that has got another MAC address.
func TestLongDriverIWARPNamespaces(t *testing.T) {
	inIWARPLab(t, 15*time.Minute, driverExtras{}, true, func(l *driverLab) {
		i := &interfaces{driverLab: l, t: t, g: l.guests[0]}
		i.beginIWARP()
		const in = "ip netns exec pod "
		one := &driverLab{Lab: l.Lab, guests: [2]*shell{i.g, i.g}}
		programs := func(mode string) {
			t.Helper()
			own, pod := i.Hosts[0].TenantIP, secondIP
			began := time.Now()
			one.pair(t, in+"rping -s -V -C 5 -a "+pod, "rping -c -V -C 5 -I "+own+" -a "+pod)
			one.pair(t, "rping -s -V -C 5 -a "+own, in+"rping -c -V -C 5 -I "+pod+" -a "+own)
			one.pair(t, in+"ib_write_bw -R -F -n 100", "ib_write_bw -R -F -n 100 "+pod)
			i.rping("", own)
			t.Logf("%s: %v", mode, time.Since(began).Round(time.Millisecond))
		}
		i.g.must("ip netns add pod && ip link set eth1 netns pod")
		i.podAddress()
		programs("shared")
		i.g.must("ip -n pod link set eth1 down && ip -n pod link set eth1 address 52:54:00:12:34:56 && ip -n pod link set eth1 up && ip -n pod link set eth1 down && ip -n pod link set eth1 address $(ip -n pod -d link show eth1 | sed -n 's/.*permaddr //p' | cut -d' ' -f1)")
		i.podAddress()
		programs("shared, after another MAC address")
		i.g.must("ip netns del pod")
		i.g.eventually("ip link show eth1")
		i.g.eventually("rdma system set netns exclusive")
		i.g.must("ip netns add pod && ip link set eth1 netns pod && rdma dev set " + i.dev[1] + " netns pod")
		i.podAddress()
		programs("exclusive")
	})
}

// beginIWARP is begin for RNICs.
func (i *interfaces) beginIWARP() {
	i.g.must("mkdir -p /var/run && ip netns attach init $$ && ip link set eth1 up && sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
	i.g.must("ip route replace " + secondIP + " dev eth0 src " + i.Hosts[0].TenantIP)
	i.dev = [2]string{i.beside("eth0"), i.beside("eth1")}
}

// podAddress gives the second interface, in pod, its function's address.
func (i *interfaces) podAddress() {
	i.g.must("ip -n pod link set lo up; ip -n pod link set eth1 up && ip -n pod addr replace " + secondIP + "/24 dev eth1")
}

// iwarpPrograms are rdma_cm's programs, and perftest's as far as it uses rdma_cm. Over iWARP ib_send_bw sends
// only as many messages as its server has room for, which the server writes into the client's memory.
// With events, a client without room waits for a completion and does not look there again, so it may wait
// for ever. For an odd number of messages perftest makes room for one more, so that there is room for all.
var iwarpPrograms = []string{
	"rping -s -v -V -C 10|rping -c -v -V -C 10 -a {peer}",
	"rping -s -V -S 60000 -C 20|rping -c -V -S 60000 -C 20 -a {peer}",
	"rdma_server|rdma_client -s {peer}",
	"ucmatose|ucmatose -s {peer}",
	"ib_write_bw -R -F -n 500",
	"ib_write_lat -R -F -n 500",
	"ib_read_bw -R -F -n 300",
	"ib_read_lat -R -F -n 300",
	"ib_send_bw -R -F -n 500",
	"ib_send_lat -R -F -n 500",
	"ib_write_bw -R -F -a -n 5",
	"ib_read_bw -R -F -a -n 5",
	"ib_send_bw -R -F -a -n 5",
	"ib_write_bw -R -F -q 8 -n 200",
	"ib_send_bw -R -F -e -n 201",
}

// TestLongDriverIWARP: where the NIC's transport is iWARP, the driver makes an RNIC of the function, and
// rdma_cm's programs and perftest -R run unmodified between guests of two NICs. What iWARP does not
// have is refused at once. Programs that follow each other may have more connections than a function has at once,
// from ports that others had just before. After them, and after programs were killed at either end, nothing is left at
// either NIC.
func TestLongDriverIWARP(t *testing.T) {
	inIWARPLab(t, 20*time.Minute, driverExtras{}, false, func(l *driverLab) {
		if said := l.guests[0].must("ibv_devinfo -v"); !strings.Contains(said, "iWARP") {
			t.Errorf("ibv_devinfo -v:\n%s", said)
		}
		for _, p := range iwarpPrograms {
			l.program(t, p)
		}
		l.refusals(t)
		for range 4 {
			l.program(t, "ucmatose -c 100|ucmatose -c 100 -s {peer}")
		}
		l.nothingLeft(t)
		l.killed(t, l.Hosts[0].PeerGI)
		l.nothingLeft(t)
		l.program(t, iwarpPrograms[0])
		l.otherTransport(t)
	})
}

// otherTransport upgrades the first NIC to a configuration without iWARP: the guest's device comes again as RoCE's.
func (l *driverLab) otherTransport(t testing.TB) {
	t.Helper()
	l.Rewrite(0, "rdma: {transport: iwarp, ", "rdma: {")
	if out, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[0].Control); code != 0 {
		t.Fatal(out, errs)
	}
	l.guests[0].eventually("grep -q CA /sys/class/infiniband/*/node_type && grep -q ACTIVE /sys/class/infiniband/*/ports/1/state")
	l.ready(0)
	t.Log(l.guests[0].must("ibv_devinfo; dmesg | grep -i 'RDMA device'"))
}

// refusals checks that programs which need what iWARP does not have end, each with an error.
func (l *driverLab) refusals(t testing.TB) {
	t.Helper()
	for _, p := range []string{"ibv_rc_pingpong {dev} -g 0", "ib_send_bw {dev} -F", "ib_send_bw -R -F -c UD"} {
		said, status := l.served(t, l.expand(1, p), l.expand(0, p+" {peer}"))
		t.Logf("%s: exit status %d: %s", p, status, said)
		if status == 0 || status == hung {
			t.Errorf("%s: exit status %d", p, status)
		}
	}
	for _, p := range []string{"ibv_uc_pingpong {dev} -g 0", "ibv_ud_pingpong {dev} -g 0", "ibv_xsrq_pingpong {dev} -g 0", "udaddy -s {peer}"} {
		said, status := l.guests[0].run(bounded(l.expand(0, p)) + " 2>&1")
		t.Logf("%s: exit status %d: %s", p, status, said)
		if status == 0 || status == hung {
			t.Errorf("%s: exit status %d", p, status)
		}
	}
}

// nothingLeft checks that neither kernel has queue pairs, and neither NIC has connections or objects
// of programs.
func (l *driverLab) nothingLeft(t testing.TB) {
	t.Helper()
	for i, g := range l.guests {
		g.eventually("test -z \"$(rdma res show qp; rdma res show cm_id)\"")
		vnictest.Eventually(t, "no connections", func() error {
			cs, err := l.Control(i).Connections(context.Background())
			if err == nil && len(cs) != 0 {
				err = fmt.Errorf("connections %+v", cs)
			}
			if f := l.VF(i); err == nil && f.QPs+f.MRs != 0 {
				err = fmt.Errorf("%d QPs and %d regions", f.QPs, f.MRs)
			}
			return err
		})
	}
}

// killed kills a program at one end, and then one at the other end. Each time its peer ends by itself. The second
// guest's has that address.
func (l *driverLab) killed(t testing.TB, addr string) {
	t.Helper()
	for i, dies := range l.guests {
		client, server := l.guests[0], l.guests[1]
		server.must("rm -f /tmp/rc /tmp/said; ((rping -s -v -C 1000000 >/tmp/said 2>&1; echo $? >/tmp/rc) &)")
		server.eventually("rdma res show cm_id | grep -q 'LISTEN.*rping'")
		client.must(fmt.Sprintf("rm -f /tmp/rc /tmp/said; ((rping -c -v -C 1000000 -a %s >/tmp/said 2>&1; echo $? >/tmp/rc) &)", addr))
		// A connection in CONNECT may not be accepted yet. If a program ends then, iw_cm has a BUG with siw. So data
		// has to have come.
		for _, g := range l.guests {
			g.eventually("test -s /tmp/said")
		}
		began := time.Now()
		dies.must("pkill -KILL -x rping")
		for j, g := range l.guests {
			g.eventually("test -s /tmp/rc")
			t.Logf("%s killed, %s ends with exit status %s after %v", l.guests[i].name, l.guests[j].name, g.must("cat /tmp/rc"), time.Since(began).Round(10*time.Millisecond))
		}
	}
}

// TestLongDriverIWARPNVMe: NVMe over RDMA runs over iWARP, with every byte verified. It goes on by
// itself when a NIC's worker was killed, and when the target's driver, or the host's, was removed with
// live connections and loaded again, a disk connects anew.
func TestLongDriverIWARPNVMe(t *testing.T) {
	inIWARPLab(t, 20*time.Minute, nvmeExtras, false, func(l *driverLab) {
		l.nvmeTarget(l.Hosts[1].TenantIP)
		l.nvmeConnect()
		fio := l.startFio()
		for i := range l.Hosts {
			fio.moves(t, "before the kill")
			n := l.NIC(i, 0)
			l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
			l.NIC(i, n.Worker)
			fio.moves(t, fmt.Sprintf("after host %d's worker was killed", i+1))
		}
		fio.wait(t)
		for i, g := range l.guests {
			l.guests[0].must("dd if=/dev/nvme0n1 of=/dev/null bs=64k iflag=direct 2>/dev/null & sleep 1")
			g.must(fmt.Sprintf("timeout %d rmmod vnic", int(slowly(100*time.Second).Seconds())))
			g.must(loadDriver)
			l.readyIWARP(i)
			l.guests[0].must("for f in /sys/class/nvme/nvme*/delete_controller; do test -e $f && echo 1 >$f; done; wait; true")
			if i == 1 { // its listener went with the device
				g.must("cd /sys/kernel/config/nvmet/ports/1 && rm subsystems/disk && ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk; cd")
			}
			l.nvmeConnect()
			l.guests[0].must("dd if=/dev/nvme0n1 of=/dev/null bs=64k count=100 iflag=direct")
			l.sane(t)
		}
	})
}
