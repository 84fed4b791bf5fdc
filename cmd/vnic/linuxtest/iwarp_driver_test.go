package linuxtest_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/demo"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
)

// inIWARPLab is inDriverLab with NICs whose transport is iWARP.
func inIWARPLab(t testing.TB, bound time.Duration, extra driverExtras, f func(l *driverLab)) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	m := driverImage(t, ctx, extra)
	change := func(l *vnictest.Lab) {
		for i := range l.Hosts {
			l.Rewrite(i, "rdma: {", "rdma: {transport: iwarp, ")
		}
	}
	bootDriverLab(t, demo.Options{Windows: true}, [2]qemu.Machine{m, m}, change, func(l *driverLab) {
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

// iwarpPrograms are rdma_cm's programs, and perftest's as far as it uses rdma_cm.
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
	"ib_send_bw -R -F -e -n 200",
}

// TestLongDriverIWARP: where the NIC's transport is iWARP, the driver makes an RNIC of the function, and
// rdma_cm's programs and perftest -R run unmodified between guests of two NICs. What iWARP does not
// have is refused at once. After two hundred connections, and after programs were killed at either
// end, nothing is left at either NIC.
func TestLongDriverIWARP(t *testing.T) {
	inIWARPLab(t, 20*time.Minute, driverExtras{}, func(l *driverLab) {
		if said := l.guests[0].must("ibv_devinfo -v"); !strings.Contains(said, "iWARP") {
			t.Errorf("ibv_devinfo -v:\n%s", said)
		}
		for _, p := range iwarpPrograms {
			l.program(t, p)
		}
		l.refusals(t)
		for range 2 {
			l.program(t, "ucmatose -c 100|ucmatose -c 100 -s {peer}")
		}
		l.nothingLeft(t)
		l.killed(t)
		l.nothingLeft(t)
		l.program(t, iwarpPrograms[0])
	})
}

// refusals checks that programs which need what iWARP does not have end, each with an error.
func (l *driverLab) refusals(t testing.TB) {
	t.Helper()
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

// killed kills a program at one end, and then one at the other end. Each time its peer ends by itself.
func (l *driverLab) killed(t testing.TB) {
	t.Helper()
	for i, dies := range l.guests {
		client, server := l.guests[0], l.guests[1]
		server.must("rm -f /tmp/rc; ((rping -s -C 1000000 >/tmp/server 2>&1; echo $? >/tmp/rc) &); sleep 1")
		client.must(fmt.Sprintf("rm -f /tmp/rc; ((rping -c -C 1000000 -a %s >/tmp/client 2>&1; echo $? >/tmp/rc) &); sleep 2; pgrep rping", l.Hosts[0].PeerGI))
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
	inIWARPLab(t, 20*time.Minute, nvmeExtras, func(l *driverLab) {
		l.nvmeTarget()
		l.nvmeConnect()
		long := slowly(30 * time.Second)
		fio := l.startFio(long)
		for i := range l.Hosts {
			fio.moves(t, "before the kill")
			n := l.NIC(i, 0)
			l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
			l.NIC(i, n.Worker)
			fio.moves(t, fmt.Sprintf("after host %d's worker was killed", i+1))
		}
		fio.wait(t, long+slowly(vnictest.Limit))
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
