package linuxtest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongDriverNFS mounts by RDMA what the other guest's kernel serves, copies a tree to it,
// mounts it anew and compares.
func TestLongDriverNFS(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{packages: []string{"nfs-kernel-server", "diffutils"}, modules: []string{"rpcrdma", "nfsd", "nfsv4"}})
	inDriverLab(t, m, func(l *driverLab) {
		defer l.keepConsoles()
		client, server := l.guests[0], l.guests[1]
		for _, command := range []string{
			"mkdir -p /srv/tree /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs",
			"touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab",
			"mount -t tmpfs tree /srv/tree",
			"mount -t nfsd nfsd /proc/fs/nfsd",
			"mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs",
			"exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check '*:/srv/tree'",
			"rpc.mountd -N 2 -N 3",
			"echo 10 >/proc/fs/nfsd/nfsv4leasetime; echo 10 >/proc/fs/nfsd/nfsv4gracetime",
			"rpc.nfsd -N 3 -V 4.2 --rdma=20049 4",
			"grep -x 'rdma 20049' /proc/fs/nfsd/portlist",
		} {
			server.must(command)
		}
		mount := fmt.Sprintf("timeout 100 mount -i -t nfs4 -o vers=4.2,proto=rdma,port=20049,addr=%s,clientaddr=%s %[1]s:/ /mnt", l.Hosts[0].PeerGI, l.Hosts[0].TenantIP)
		client.must("mkdir -p /mnt; " + mount)
		client.must("grep proto=rdma /proc/mounts")
		client.must("timeout 200 cp -a /usr/bin /usr/share/perl5 /mnt/")
		client.must("umount /mnt; " + mount)
		client.must("timeout 200 diff -r --no-dereference /usr/bin /mnt/bin && diff -r --no-dereference /usr/share/perl5 /mnt/perl5")
		t.Logf("%s", client.must("du -sh /mnt"))
		client.must("umount /mnt")
		server.must("rpc.nfsd 0; exportfs -f")
		server.eventually("umount /srv/tree 2>/dev/null; ! grep -q /srv/tree /proc/mounts") // nfsd closes its files a while later
	})
}

// nvmeTarget serves a RAM disk in the second guest at an address.
func (l *driverLab) nvmeTarget(addr string) {
	l.T.Helper()
	for _, command := range []string{
		"mount -t configfs none /sys/kernel/config 2>/dev/null; cd /sys/kernel/config/nvmet",
		"mkdir -p subsystems/disk/namespaces/1",
		"echo 1 >subsystems/disk/attr_allow_any_host",
		"echo -n /dev/ram0 >subsystems/disk/namespaces/1/device_path",
		"echo 1 >subsystems/disk/namespaces/1/enable; cd",
	} {
		l.guests[1].must(command)
	}
	l.nvmePort(1, addr)
}

// nvmePort serves it at an address, by the device that has it.
func (l *driverLab) nvmePort(n int, addr string) {
	l.T.Helper()
	family := "ipv4"
	if strings.Contains(addr, ":") {
		family = "ipv6"
	}
	for _, command := range []string{
		fmt.Sprintf("cd /sys/kernel/config/nvmet; mkdir ports/%d; cd ports/%[1]d", n),
		fmt.Sprintf("echo rdma >addr_trtype; echo %s >addr_adrfam; echo 4420 >addr_trsvcid; echo %s >addr_traddr", family, addr),
		"ln -s /sys/kernel/config/nvmet/subsystems/disk subsystems/disk; cd",
	} {
		l.guests[1].must(command)
	}
}

// nvmeExtras are what its guests need.
var nvmeExtras = driverExtras{packages: []string{"fio", "gawk"}, modules: []string{"nvmet_rdma", "nvme_rdma", "brd", "crc32c_generic"}}

// nvmeConnect makes /dev/nvme0n1 of the first guest the other's disk.
func (l *driverLab) nvmeConnect() {
	l.T.Helper()
	l.nvmeConnectTo(l.Hosts[1].TenantIP)
}

// nvmeConnectTo does it by the device that reaches an address.
func (l *driverLab) nvmeConnectTo(addr string) {
	l.T.Helper()
	l.guests[0].must(fmt.Sprintf("echo -n transport=rdma,traddr=%s,trsvcid=4420,nqn=disk,nr_io_queues=2,reconnect_delay=1,ctrl_loss_tmo=300,keep_alive_tmo=5 >/dev/nvme-fabrics", addr))
	l.guests[0].eventually("test -b /dev/nvme0n1")
}

// nvmeKills is how often it kills a worker.
const nvmeKills = 2

// nvmeTime is how long TestLongDriverNVMe writes and reads, unless VNIC_SOAK says otherwise.
const nvmeTime = 40 * time.Second

// TestLongDriverNVMe has a disk of one guest used by the other, by NVMe over RDMA. Reads and writes
// of mixed sizes are verified, while the workers of both NICs are killed in turn: the host's kernel
// connects anew by itself, and no byte is wrong.
func TestLongDriverNVMe(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	long := slowly(nvmeTime)
	if s := os.Getenv("VNIC_SOAK"); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute+2*long)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx, nvmeExtras), func(l *driverLab) {
		defer l.keepConsoles()
		l.nvmeTarget(l.Hosts[1].TenantIP)
		l.nvmeConnect()
		fio, end := l.startFio(), time.Now().Add(long)
		for i := range nvmeKills {
			fio.moves(t, "before the kill")
			n := l.NIC(i%2, 0)
			l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
			l.NIC(i%2, n.Worker)
			began := time.Now()
			fio.moves(t, fmt.Sprintf("after host %d's worker was killed", i%2+1))
			t.Logf("kill %d, host %d: the disk moves again after %v", i+1, i%2+1, time.Since(began).Round(100*time.Millisecond))
			time.Sleep(long / 4 / nvmeKills)
		}
		time.Sleep(time.Until(end))
		fio.wait(t)
	})
}

// fio writes, reads and verifies in the first guest, in rounds until wait is called: a round's time goes on
// while the disk stands still.
type fio struct{ l *driverLab }

func (l *driverLab) startFio() fio {
	l.T.Helper()
	l.guests[0].must(fmt.Sprintf("rm -f /tmp/fio.rc /tmp/fio.stop; ( (until test -e /tmp/fio.stop; do fio --name=verify --filename=/dev/nvme0n1 --rw=randrw --bsrange=512-128k --blockalign=512 --ioengine=libaio --iodepth=8 --direct=1 "+
		"--verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=%d >/tmp/fio 2>&1 || break; done; echo $? >/tmp/fio.rc) &)", int(slowly(5*time.Second).Seconds())))
	return fio{l}
}

// moves waits until the disk has done more.
func (f fio) moves(t testing.TB, when string) {
	t.Helper()
	const done = "awk '{print $1+$5}' /sys/block/nvme0c0n1/stat /sys/block/nvme0n1/stat 2>/dev/null | sort -n | tail -n 1"
	g := f.l.guests[0]
	before := g.must(done)
	said, status := g.run(fmt.Sprintf("for i in $(seq 1200); do test $(%s) -gt $((%s + 100)) && break; test -s /tmp/fio.rc && break; sleep 0.1; done; test ! -s /tmp/fio.rc && test $(%[1]s) -gt $((%[2]s + 100))", done, before))
	if status != 0 {
		t.Fatalf("the disk does not move %s:\n%s\n%s\n%s\nthe target:\n%s", when, said, g.must("cat /tmp/fio"), g.kernel(), f.l.guests[1].kernel())
	}
}

// wait waits for the end of fio's round, which has to be a good one.
func (f fio) wait(t testing.TB) {
	t.Helper()
	g := f.l.guests[0]
	g.must("touch /tmp/fio.stop")
	for end := time.Now().Add(slowly(vnictest.Limit)); ; {
		rc, _ := g.run("for i in $(seq 50); do test -s /tmp/fio.rc && break; sleep 0.1; done; cat /tmp/fio.rc 2>/dev/null")
		if rc == "0" {
			break
		}
		if rc != "" || time.Now().After(end) {
			t.Fatalf("fio: exit status %q:\n%s\n%s", rc, g.must("cat /tmp/fio"), g.kernel())
		}
	}
	for line := range strings.Lines(g.must("cat /tmp/fio")) {
		if strings.Contains(line, "bw=") || strings.Contains(line, "issued") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
