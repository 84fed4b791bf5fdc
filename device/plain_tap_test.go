package device

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// namespace is an empty network namespace, held by a process that dies with the test.
type namespace struct {
	t    testing.TB
	pid  int
	name string // name of its interface
}

func newNamespace(t testing.TB, name string) *namespace {
	t.Helper()
	hold := exec.Command("sleep", "600")
	hold.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = hold.Process.Kill()
		_ = hold.Wait()
	})
	return &namespace{t, hold.Process.Pid, name}
}

func (s *namespace) path() string { return fmt.Sprintf("/proc/%d/ns/net", s.pid) }

// sh runs a command in the namespace and returns what it printed.
func (s *namespace) sh(format string, args ...any) string {
	s.t.Helper()
	out, err := s.try(format, args...)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", fmt.Sprintf(format, args...), err, out)
	}
	return out
}

func (s *namespace) try(format string, args ...any) (string, error) {
	out, err := exec.Command("nsenter", "-t", fmt.Sprint(s.pid), "-n", "sh", "-c", fmt.Sprintf(format, args...)).CombinedOutput()
	return string(out), err
}

// in calls f on a thread in the namespace: sockets that f opens belong to it.
func (s *namespace) in(f func()) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := unix.Open(s.path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// up brings the interface up with addresses.
func (s *namespace) up(prefixes ...string) {
	s.t.Helper()
	s.sh("ip link set lo up")
	for _, p := range prefixes {
		s.sh("ip addr add %s dev %s nodad", p, s.name)
	}
}

// onPorts runs f with two NICs on a bridge, each with a port in a network namespace of its own.
func onPorts(t testing.TB, change func(i int, c *config.Config), f func(w *world, a, b *namespace)) {
	t.Helper()
	besidePorts(t, change, func(w *world, a, b *namespace) {
		for i, s := range []*namespace{a, b} {
			s.up(fmt.Sprintf("192.168.100.%d1/24", i+1), fmt.Sprintf("fd00:100::%d1/64", i+1))
		}
		w.waitTunnels()
		f(w, a, b)
	})
}

// besidePorts is onPorts where the ports have no addresses yet, or do not exist.
func besidePorts(t testing.TB, change func(i int, c *config.Config), f func(w *world, a, b *namespace)) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	netns.Run(t, func() {
		if err := tap.NewBridge("br0", tapMTU); err != nil {
			t.Fatal(err)
		}
		namespaces := [2]*namespace{newNamespace(t, "vp1"), newNamespace(t, "vp2")}
		var cfgs [2]*config.Config
		uplink := func(name string) (tap.Uplink, error) { return openTAP(cfgs[name[3]-'1'], nil) }
		w := newWorldWith(t, uplink, func(i int, c *config.Config) {
			cfgs[i] = c
			u := &c.Uplink
			u.Backend, u.Name, u.Bridge, u.MTU, u.Superframes = config.BackendNative, c.NIC.Name, "br0", 1500, config.SuperframesAuto
			c.RDMA.MTU = 1024
			devicetest.AddPort(c, 0, &config.Port{Name: namespaces[i].name, Netns: namespaces[i].path(), Addresses: devicetest.Addrs(fmt.Sprintf("fd00:100::%d1", i+1))})
			change(i, c)
		})
		defer func() { // before the namespace goes
			for i := range w.stop {
				if err := w.stop[i](); err != nil {
					t.Error(err)
				}
			}
		}()
		f(w, namespaces[0], namespaces[1])
	})
}

// waitTunnels waits until both NICs have keys for all their tunnels.
func (w *world) waitTunnels() {
	w.t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
		missing := 0
		for _, n := range w.nics {
			missing += keyless(w.t, n)
		}
		if missing == 0 {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d tunnels without keys", missing)
		}
	}
}

// keyless counts the peers that a port has no key for yet.
func keyless(t testing.TB, n *NIC) (missing int) {
	t.Helper()
	routes, err := n.Routes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	missing = 1 // the only peer
	for _, r := range routes {
		if r.Kind == "peer" && r.Sealed {
			missing = 0
		}
	}
	return missing
}

// transfer sends n bytes over TCP from one namespace to an address of the other and checks the hash
// that comes back.
func transfer(t testing.TB, from, to *namespace, addr string, n int) {
	t.Helper()
	var ln net.Listener
	var err error
	to.in(func() { ln, err = net.Listen("tcp", net.JoinHostPort(addr, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		h := sha256.New()
		if _, err := io.CopyN(h, c, int64(n)); err == nil {
			_, _ = c.Write(h.Sum(nil))
		}
	}()
	var c net.Conn
	from.in(func() { c, err = net.DialTimeout("tcp", ln.Addr().String(), testTime) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testTime))
	h, chunk := sha256.New(), make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(i * 2654435761 >> 11)
	}
	for left := n; left > 0; {
		b := chunk[:min(left, len(chunk))]
		h.Write(b)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		left -= len(b)
	}
	got := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(h.Sum(nil)) {
		t.Errorf("%d bytes to %s arrived changed", n, addr)
	}
}

// datagrams sends UDP datagrams of a size and checks that each comes back.
func datagrams(t testing.TB, from, to *namespace, addr string, size, count int) {
	t.Helper()
	var server, client net.PacketConn
	var err error
	to.in(func() { server, err = net.ListenPacket("udp", net.JoinHostPort(addr, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, who, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:n], who)
		}
	}()
	from.in(func() { client, err = net.ListenPacket("udp", ":0") })
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	out, in := make([]byte, size), make([]byte, 1<<16)
	for i := range count {
		for j := range out {
			out[j] = byte(i + j)
		}
		if _, err := client.WriteTo(out, server.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(testTime))
		n, _, err := client.ReadFrom(in)
		if err != nil {
			t.Fatalf("datagram %d of %d bytes: %v", i, size, err)
		}
		if string(in[:n]) != string(out) {
			t.Fatalf("datagram %d of %d bytes arrived changed", i, size)
		}
	}
}

// TestPortsCarryPlainIP tests plain IP between ports of two NICs: ping, TCP and UDP, both versions,
// with and without the guest's own segmentation.
func TestPortsCarryPlainIP(t *testing.T) {
	onPorts(t, func(int, *config.Config) {}, func(w *world, a, b *namespace) {
		for _, to := range []string{"192.168.100.21", "fd00:100::21"} {
			a.sh("ping -c 2 -i 0.05 -W 60 %s", to)
			a.sh("ping -c 1 -s 1300 -W 60 %s", to)
			transfer(t, a, b, to, 16<<20)
			datagrams(t, a, b, to, 1, 10)
			datagrams(t, a, b, to, 1300, 10)
			datagrams(t, a, b, to, 5000, 10) // in fragments
		}
		if n := w.counter(0, "gateway.segments"); n < 1000 {
			t.Errorf("%d segments cut: TCP crossed the port piece by piece", n)
		}
		if n := w.counter(1, "gateway.coalesced"); n < 1000 {
			t.Errorf("%d segments joined", n)
		}
		if n := w.counter(0, "gateway.fragments"); n == 0 {
			t.Error("no fragments counted")
		}
		for _, s := range []*namespace{a, b} {
			s.sh("ip link set %s gso_max_segs 1 2>/dev/null || true", s.name)
		}
		transfer(t, b, a, "192.168.100.11", 4<<20)
		for i := range w.nics {
			for _, c := range []string{"drop_source_ip", "drop_source_mac", "drop_header", "drop_offload", "drop_wrong_source", "drop_wrong_vc", "drop_too_big", "drop_port_full"} {
				if n := w.counter(i, "gateway."+c); n != 0 {
					t.Errorf("NIC %d: %s is %d", i+1, c, n)
				}
			}
		}
		if n := w.counter(0, "port.vp1.rx_bytes"); n < 32<<20 {
			t.Errorf("%d bytes from the port", n)
		}
		if out := a.sh("ip link show %s", a.name); !strings.Contains(out, "mtu 1432") {
			t.Error(out)
		}
	})
}

// TestAGuestBehindABridgeGetsItsAddress tests a port on a bridge with the guest's interface behind it: the guest has the
// function's MAC, the port's device another. The guest gets its address and MTU from the gateway.
func TestAGuestBehindABridgeGetsItsAddress(t *testing.T) {
	useShards(t, 2)
	if _, err := exec.LookPath("busybox"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	onPorts(t, func(i int, c *config.Config) {
		if i == 1 {
			return
		}
		if err := tap.NewBridge("gbr1", 0); err != nil {
			t.Fatal(err)
		}
		c.Tenants = []config.Tenant{{Tenant: 7, Routers: devicetest.Addrs("192.168.100.1")}}
		c.Functions[0].VFs[1].Port = nil
		devicetest.AddPort(c, 1, &config.Port{Mode: config.PortBridged, Name: "vpb", Bridge: "gbr1"})
	}, func(w *world, _, b *namespace) {
		guest := newNamespace(t, "eth0")
		mac := w.nics[0].cfg.Functions[0].VFs[1].MAC
		run(t, "ip link add gv0 type veth peer name eth0 netns %d", guest.pid)
		run(t, "ip link set gv0 master gbr1 up")
		guest.sh("ip link set lo up; ip link set eth0 address %s up", mac)
		guest.sh(`cat > /tmp/vnic-udhcpc-%[1]d.sh <<'S'
#!/bin/sh
[ "$1" = bound ] && ip addr add $ip/$mask dev $interface && ip link set $interface mtu $mtu && ip route add default via $router
exit 0
S
chmod +x /tmp/vnic-udhcpc-%[1]d.sh`, guest.pid)
		defer os.Remove(fmt.Sprintf("/tmp/vnic-udhcpc-%d.sh", guest.pid))
		out := guest.sh("busybox udhcpc -i eth0 -n -q -t 20 -T 1 -O mtu -O router -s /tmp/vnic-udhcpc-%d.sh", guest.pid)
		if got := guest.sh("ip addr show eth0; ip route"); !strings.Contains(got, "192.168.100.12/24") || !strings.Contains(got, "mtu 1432") || !strings.Contains(got, "default via 192.168.100.1") {
			t.Fatalf("%s\n%s", out, got)
		}
		guest.sh("ping -c 2 -i 0.05 -W 60 192.168.100.21") // a peer's
		guest.sh("ping -c 1 -W 60 192.168.100.11")         // of the same NIC
		guest.sh("ping -c 1 -W 60 192.168.100.1")          // the gateway
		b.sh("ping -c 1 -W 60 192.168.100.12")
		transfer(t, guest, b, "192.168.100.21", 4<<20)
		transfer(t, b, guest, "192.168.100.12", 4<<20)
	})
}

// run runs a command in the thread's own namespace.
func run(t testing.TB, format string, args ...any) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", fmt.Sprintf(format, args...)).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", fmt.Sprintf(format, args...), err, out)
	}
}

// TestPortsLocalAndSmaller checks that ports of one NIC reach each other without the uplink, with
// unchanged frames, and that TCP adapts to a peer with a smaller port, which ICMP reports.
func TestPortsLocalAndSmaller(t *testing.T) {
	var third *namespace
	onPorts(t, func(i int, c *config.Config) {
		if i == 0 {
			third = newNamespace(t, "vp3")
			devicetest.AddPort(c, 1, &config.Port{Name: "vp3", Netns: third.path()})
			return
		}
		c.Functions[0].VFs[0].Port.MTU = 1300
	}, func(w *world, a, b *namespace) {
		third.up("192.168.100.12/24")
		before := w.counter(0, "uplink.tx_frames")
		transfer(t, a, third, "192.168.100.12", 16<<20)
		transfer(t, third, a, "192.168.100.11", 16<<20)
		if n := w.counter(0, "uplink.tx_frames") - before; n > 100 {
			t.Errorf("%d frames on the uplink", n)
		}
		if frames, bytes := w.counter(0, "gateway.to_ports"), w.counter(0, "gateway.to_port_bytes"); bytes/frames < 2000 {
			t.Errorf("%d bytes in a frame on average: they were cut", bytes/frames)
		}

		if out, err := a.try("ping -M do -c 1 -W 60 -s 1372 192.168.100.21"); err == nil || !strings.Contains(out, "mtu = 1300") && !strings.Contains(out, "mtu=1300") {
			t.Errorf("%v: %s", err, out)
		}
		if out, err := a.try("ping -6 -M do -c 1 -W 60 -s 1372 fd00:100::21"); err == nil || !strings.Contains(strings.ToLower(out), "mtu") {
			t.Errorf("%v: %s", err, out)
		}
		a.sh("ping -M do -c 1 -W 60 -s 1272 192.168.100.21")
		transfer(t, a, b, "192.168.100.21", 4<<20)
		transfer(t, b, a, "192.168.100.11", 4<<20)
		datagrams(t, a, b, "192.168.100.21", 1400, 3)
	})
}

// TestAPortFollowsItsLinkAndItsNIC checks that devices follow a link that goes down and up, at the guest's side or
// by the operator, and are removed when a NIC stops.
func TestAPortFollowsItsLinkAndItsNIC(t *testing.T) {
	onPorts(t, func(int, *config.Config) {}, func(w *world, a, b *namespace) {
		for range 3 {
			a.sh("ip link set vp1 down")
			if _, err := b.try("ping -c 1 -W 1 192.168.100.11"); err == nil {
				t.Fatal("answered by an interface that is down")
			}
			a.sh("ip link set vp1 up")
			a.sh("ping -c 3 -i 0.2 -W 60 192.168.100.21")
		}
		if err := w.stop[0](); err != nil {
			t.Fatal(err)
		}
		if out, err := a.try("ip link show vp1"); err == nil {
			t.Errorf("the port is still there: %s", out)
		}
		if _, err := b.try("ping -c 1 -W 1 192.168.100.11"); err == nil {
			t.Error("answered by a NIC that stopped")
		}
	})
}
