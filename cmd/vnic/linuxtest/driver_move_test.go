package linuxtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/qemu"
)

// TestLongDriverConnectsAgainAfterAMove: when a function moves to another NIC, a queue pair of Linux that rdma_cm
// has connected to it goes to error by an event, and a program that connects to the same address reaches the
// guest at the new place, at the first attempt: also while the program whose connection has ended is still there.
func TestLongDriverConnectsAgainAfterAMove(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	vnictest.RequireEtcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{})
	inFleet(t, func(f *driverFleet) {
		before, after := f.lab(1), f.lab(2)
		defer func() {
			if t.Failed() {
				t.Logf("at the old place:\n%s\nat the new place:\n%s\n%s", before.evidence(t), after.evidence(t), f.statuses())
			}
		}()
		for i := range before.Hosts {
			before.boot(i, m)
			defer before.vms[i].Stop()
		}
		client, old := before.guests[0], before.guests[1]
		for i, g := range before.guests {
			g.begin()
			before.hasAddress(i)
		}
		client.must("echo 'module vnic +p' >/proc/dynamic_debug/control") // its messages of failed queue pairs

		addr := before.Hosts[1].TenantIP
		before.listens("rping -s")
		client.must("((rping -c -v -C 100000000 -a " + addr + " >/tmp/rping 2>&1; echo $? >/tmp/ended) &)")
		client.eventually("test $(wc -l </tmp/rping) -gt 100")

		began := time.Now()
		to := f.hosts[2]
		f.vnic("fleet", "move", "old/pf0.vf1", "new", "--dir", f.dir, "--wait", vnictest.Limit.String(), "--set", fmt.Sprintf("guest=cid:%d", to.GuestCID),
			"--set", fmt.Sprintf("port=type=vhost-user,socket=%s,mtu=%d", to.PortSocket, to.PortMTU))
		client.eventually("dmesg | grep 'QP .* failed: '")
		t.Logf("the connection ended %v after the move began", time.Since(began).Round(time.Millisecond))
		old.eventually("dmesg | grep 'the NIC is lost'")

		m.Windows = []qemu.Window{{Function: "pf0.vf1", Socket: (&config.Attach{Socket: to.Socket}).WindowSocket(config.NamedFunction{VF: 1})}}
		after.boot(1, m)
		defer after.vms[1].Stop()
		after.guests[0] = client
		after.guests[1].begin()
		after.hasAddress(1)
		after.pair(t, "rping -s -C 10", "rping -c -C 10 -a "+addr)
		t.Logf("a program had run at the new place %v after the move began", time.Since(began).Round(time.Millisecond))
		before.sane(t)
		after.sane(t)
	})
}

// listens starts a server in the second guest and waits until it listens by rdma_cm.
func (l *driverLab) listens(server string) {
	l.T.Helper()
	l.guests[1].must(serve(server))
	l.guests[1].eventually("rdma res show cm_id | grep 'state LISTEN'")
}

// hasAddress waits until a guest has its function's verbs device and address.
func (l *driverLab) hasAddress(i int) {
	l.T.Helper()
	ip := l.Hosts[i].TenantIP // DHCP has set it, unless the machine was so busy that it gave up
	l.guests[i].must(fmt.Sprintf("ip -4 addr show dev eth0 | grep -q %s || ip addr add %[1]s/24 dev eth0", ip))
	l.ready(i)
}

// driverFleet is a fleet of three NICs and an etcd of one member. The first two NICs have a function and a guest
// each; the function of the second one can move to the third.
type driverFleet struct {
	t     testing.TB
	dir   string
	hosts [3]*vnictest.Host
}

const fleetEndpoint = "https://127.0.0.1:2379" // in a namespace of its own

// inFleet calls f with a fleet of the NICs client, old and new, which run and have links to each other.
func inFleet(t testing.TB, do func(f *driverFleet)) {
	t.Helper()
	f := &driverFleet{t: t, dir: filepath.Join(vnictest.EtcdDir(t), "fleet")}
	run, err := os.MkdirTemp("", "vnic-move-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	vnictest.Program(t)
	netns.Run(t, func() {
		if err := netns.Up("lo", "10.98.0.1/24", "10.98.0.2/24", "10.98.0.3/24"); err != nil {
			t.Fatal(err)
		}
		f.vnic("fleet", "init", "--domain", "lab", "--endpoint", fleetEndpoint, "--dir", f.dir)
		vnictest.StartEtcd(t, filepath.Join(f.dir, "etcd-1.yaml"), nil)
		f.vnic("fleet", "init", "--dir", f.dir)
		defer f.start("signer", filepath.Join(run, "signer.log"), "fleet", "watch", "--sign", "--dir", f.dir)()
		for i, name := range []string{"client", "old", "new"} {
			h := f.newHost(run, i+1, name)
			f.hosts[i] = h
			defer f.start(name, h.Log, "run", "-c", h.Config)()
		}
		for _, h := range f.hosts {
			vnictest.Eventually(t, "links", func() error {
				list, err := control.NewClient(h.Control).Peers(context.Background())
				if err == nil && (len(list) != 2 || !list[0].Up || !list[1].Up) {
					err = fmt.Errorf("%+v", list)
				}
				return err
			})
		}
		do(f)
	})
}

// start starts a program of the fleet and returns what stops it.
func (f *driverFleet) start(name, log string, args ...string) (stop func()) {
	f.t.Helper()
	p, err := labkit.Start(name, log, append([]string{vnictest.Program(f.t)}, args...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		p.Stop(10 * time.Second)
		if b, _ := os.ReadFile(log); f.t.Failed() {
			f.t.Logf("%s:\n%s", name, b)
		}
	}
}

// newHost lets a host join, and writes its configuration.
func (f *driverFleet) newHost(run string, n int, name string) *vnictest.Host {
	f.t.Helper()
	at := filepath.Join(run, name)
	h := &vnictest.Host{
		Options: vnictest.Options{Windows: true}, Number: uint8(n), TenantIP: fmt.Sprintf("192.168.100.1%d", n), GuestCID: 1000 + uint32(n),
		Keys: at + "/keys", Control: at + "/ctl", Socket: at + "/g.sock", PortSocket: at + "/net.sock", GuestMAC: config.FunctionMAC(name, 0, 1).String(), PortMTU: 1400,
		Log: at + "/log", Config: at + "/nic.yaml",
	}
	granted, has := h.TenantIP, fmt.Sprintf("{vf: 1, tenant: 1, address: %s, mac: '%s', guest: {cid: %d}, port: {type: vhost-user, socket: %s, mtu: %d}}", h.TenantIP, h.GuestMAC, h.GuestCID, h.PortSocket, h.PortMTU)
	if name == "new" {
		granted, has = "192.168.100.99", "" // of the same tenant, so that it has links
		h.TenantIP, h.GuestMAC = f.hosts[1].TenantIP, f.hosts[1].GuestMAC
		h.Windows = false // of the functions in its configuration: its guest is told which one it has
	}
	text := fmt.Sprintf(`
nic: {shards: 1}
control: %s
uplink: {type: udp, listen: 10.98.0.%d:1000}
cm: {name: %s, listen: 10.98.0.%[2]d:7471, identity: %[4]s}
directory: {etcd: {endpoints: [%[5]s], prefix: /vnic/lab}}
functions: [{pf: 0, vfs: [%[6]s]}]
attach: [{type: vhost-user, socket: %[7]s, cid: %[8]d, windows: true}]
`, h.Control, n, name, h.Keys, fleetEndpoint, has, h.Socket, h.GuestCID)
	if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(h.Config, []byte(text), 0o600)); err != nil {
		f.t.Fatal(err)
	}
	f.vnic("fleet", "grant", name, "--dir", f.dir, "--token", at+"/token", "--allow", "1:"+granted)
	f.vnic("fleet", "join", "--token", at+"/token", "--dir", h.Keys)
	return h
}

// vnic runs a command that must succeed.
func (f *driverFleet) vnic(args ...string) {
	f.t.Helper()
	if _, said, code := vnictest.Run(f.t, args...); code != 0 {
		f.t.Fatalf("vnic %v: %s", args, said)
	}
}

// lab has the first host and another one.
func (f *driverFleet) lab(other int) *driverLab {
	return &driverLab{Lab: &vnictest.Lab{T: f.t, Hosts: [2]*vnictest.Host{f.hosts[0], f.hosts[other]}}}
}

// statuses returns the fleet as its NICs see it.
func (f *driverFleet) statuses() (text string) {
	for _, h := range f.hosts {
		said, errs, _ := vnictest.Run(f.t, "fleet", "status", "-s", h.Control)
		text += said + errs
	}
	return text
}
