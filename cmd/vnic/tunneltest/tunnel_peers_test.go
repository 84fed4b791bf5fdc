package tunneltest_test

import (
	"bufio"
	"cmp"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// tunnel leads from one box to the other across a bridge. Its ends have the addresses
// boxAddress(net, 1) and boxAddress(net, 2).
type tunnel struct {
	name string // of the peer; "" is ours
	net  int    // tells the tunnels' addresses apart
	stop []func()

	nics    [2]*labkit.Process // of ours
	devices [2]string          // URLs of the functions
	ports   [2]string          // sockets of their ports in guests' memory
	control string             // socket of the first
}

// boxes are two network namespaces, where clients and servers run, and the
// fabric between them: a bridge in the namespace of the test.
type boxes struct {
	t      testing.TB
	dir    string
	mtu    int // of the underlay
	spaces [2]*netns.Space
}

const (
	boxBridge   = "br0"
	boxUnderlay = "10.98.%d.%d"
)

func boxAddress(net, box int) string { return fmt.Sprintf("10.97.%d.%d", net, box) }

// newBoxes creates the boxes. The calling thread must be in a private namespace.
func newBoxes(t testing.TB, mtu int) *boxes {
	t.Helper()
	b := &boxes{t: t, dir: t.TempDir(), mtu: mtu}
	if err := tap.NewBridge(boxBridge, mtu); err != nil {
		t.Fatal(err)
	}
	for i := range b.spaces {
		s, err := netns.NewSpace()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		b.spaces[i] = s
	}
	return b
}

// must fails the test if err is not nil.
func (b *boxes) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// wires connects each box to the bridge by a veth. The ends in the boxes have that name and these
// addresses, or none if nil.
func (b *boxes) wires(name string, addresses func(box int) string) {
	b.t.Helper()
	for i, s := range b.spaces {
		outer := fmt.Sprintf("%s%d", name, i+1)
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outer, MTU: b.mtu}, PeerName: name, PeerMTU: uint32(b.mtu)}
		b.must(netlink.LinkAdd(v))
		bridge, err := netlink.LinkByName(boxBridge)
		b.must(err)
		b.must(netlink.LinkSetMaster(v, bridge))
		b.must(netlink.LinkSetUp(v))
		if addresses == nil {
			b.must(s.Take(name))
		} else {
			b.must(s.Take(name, addresses(i+1)+"/24"))
		}
	}
}

// bridge returns a path without a tunnel: veths and a bridge.
func (b *boxes) bridge(net int) *tunnel {
	b.wires("plain", func(box int) string { return boxAddress(net, box) })
	return &tunnel{name: "bridge", net: net}
}

// vxlan returns a tunnel of the kernel's VXLAN, which does not encrypt.
func (b *boxes) vxlan(n int) *tunnel {
	under := func(box int) string { return fmt.Sprintf(boxUnderlay, n, box) }
	b.wires("vxu", under)
	for i, s := range b.spaces {
		b.must(s.Do(func() error {
			dev, err := netlink.LinkByName("vxu")
			if err != nil {
				return err
			}
			err = netlink.LinkAdd(&netlink.Vxlan{
				LinkAttrs: netlink.LinkAttrs{Name: "vx", MTU: b.mtu - 50}, VtepDevIndex: dev.Attrs().Index, VxlanId: 7, Port: 4789,
				SrcAddr: net.ParseIP(under(i + 1)), Group: net.ParseIP(under(2 - i)),
			})
			return errors.Join(err, netns.Up("vx", boxAddress(n, i+1)+"/24"))
		}))
	}
	return &tunnel{name: "vxlan", net: n}
}

// buildWireguard builds the version of wireguard-go that tools/go.mod names. It may download, so it
// is called outside of network namespaces and before anything is timed.
func buildWireguard(t testing.TB) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "wireguard-go")
	build := exec.Command("go", "build", "-modfile=tools/go.mod", "-o", program, "golang.zx2c4.com/wireguard")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("wireguard-go: %v\n%s", err, out)
	}
	return program
}

// wireguard returns a tunnel of a wireguard-go in each box.
func (b *boxes) wireguard(n int, program string) *tunnel {
	b.t.Helper()
	under := func(box int) string { return fmt.Sprintf(boxUnderlay, n, box) }
	b.wires("wgu", under)
	t := &tunnel{name: "wireguard-go", net: n}
	removeStaleSockets()
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		var err error
		keys[i], err = ecdh.X25519().GenerateKey(rand.Reader)
		b.must(err)
	}
	for i, s := range b.spaces {
		// All network namespaces share the folder of its sockets.
		name := fmt.Sprintf(wireguardName, i, os.Getpid()%100000)
		var p *labkit.Process
		b.must(s.Do(func() (err error) {
			cmd := exec.Command(program, "--foreground", name)
			cmd.Env = append(os.Environ(), "LOG_LEVEL=error", "WG_PROCESS_FOREGROUND=1")
			p, err = labkit.StartCommand("wireguard-go", cmd)
			return err
		}))
		socket := wireguardSockets + name + ".sock"
		t.stop = append(t.stop, func() {
			p.Stop(5 * time.Second)
			_ = os.Remove(socket) // what a program that is killed leaves
		})
		vnictest.Eventually(b.t, "wireguard-go", func() error {
			return configureWireguard(socket, keys[i], keys[1-i].PublicKey(), under(2-i), boxAddress(n, 2-i))
		})
		b.must(s.Do(func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetMTU(l, b.mtu-60), netns.Up(name, boxAddress(n, i+1)+"/24"))
		}))
	}
	return t
}

// wireguardName is the name of wireguard-go's devices and sockets, with the box and the process of
// the benchmark.
const wireguardName = "vnwg%d-%d"

const wireguardSockets = "/var/run/wireguard/"

// removeStaleSockets removes the sockets that killed benchmarks left: those with such a name and no
// listener, which are older than a minute. A program that is just being started does not listen yet.
func removeStaleSockets() {
	list, _ := filepath.Glob(wireguardSockets + "vnwg*.sock")
	for _, s := range list {
		var box, pid int
		if _, err := fmt.Sscanf(filepath.Base(s), wireguardName+".sock", &box, &pid); err != nil {
			continue
		}
		if is, err := os.Stat(s); err != nil || time.Since(is.ModTime()) < time.Minute {
			continue
		}
		c, err := net.Dial("unix", s)
		if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(s)
		} else if err == nil {
			_ = c.Close()
		}
	}
}

// configureWireguard speaks the protocol of
// https://www.wireguard.com/xplatform/#configuration-protocol.
func configureWireguard(socket string, own *ecdh.PrivateKey, peer *ecdh.PublicKey, endpoint, allowed string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "set=1\nprivate_key=%s\nlisten_port=51820\npublic_key=%s\nendpoint=%s:51820\nallowed_ip=%s/32\n\n",
		hex.EncodeToString(own.Bytes()), hex.EncodeToString(peer.Bytes()), endpoint, allowed)
	if err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || answer != "errno=0\n" {
		return fmt.Errorf("wireguard-go answers %q, %w", answer, err)
	}
	return nil
}

// vnicOptions are the differences between our own tunnels.
type vnicOptions struct {
	name        string // of the peer it is reported as
	superframes string
	rdmaMTU     int   // 0: 1024, and the functions have ports
	processors  []int // nic.cpu of each NIC, modulo what there are; nil: any
	guestPorts  bool  // the functions' ports are of type vhost-user, at tunnel.ports
	streams     int   // functions of each NIC, VF 1 and on, whose addresses are those of as many nets; 0: one
	keepTo      []int // processors of the whole NIC, a shard on each; nil: one shard, and any
	inside      bool  // each NIC runs in its box, which a veth connects with the other one
	udp         bool  // inside: the uplink is UDP on that veth, else a TAP beside it in a bridge
}

// boxHost returns the number of the NIC in a box. It is unique because all tunnels share the
// bridge.
func boxHost(net, box int) uint8 { return uint8(10*net + box) }

// vnic starts a vnic run for each box. Its functions have ports in the box, or bare clients attach
// to them.
func (b *boxes) vnic(n int, o vnicOptions) *tunnel {
	b.t.Helper()
	t := &tunnel{name: o.name, net: n}
	host := func(box int) uint8 { return boxHost(n, box) }
	keys := filepath.Join(b.dir, fmt.Sprintf("keys%d", n))
	b.must(cmlink.Init(keys, "bench", []string{fmt.Sprint(host(1)), fmt.Sprint(host(2))}))
	ports, err := labkit.FreePorts()
	b.must(err)
	under := func(box int) string { return fmt.Sprintf(boxUnderlay, n, box) }
	cm := [2]string{fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])}
	if o.inside {
		for i := range cm {
			cm[i] = fmt.Sprintf("10.96.%d.%d:7471", n, i+1)
		}
		b.connect(n, o.udp)
	}
	run, err := os.MkdirTemp("", "vnic-box-")
	b.must(err)
	b.t.Cleanup(func() { _ = os.RemoveAll(run) })
	for i := range b.spaces {
		me, peer := i+1, 2-i
		port := func(stream int) string { return fmt.Sprintf("vp%d-%d", n+stream, me) }
		guest := filepath.Join(run, fmt.Sprintf("nic%d.sock", me))
		t.devices[i] = "unix://" + guest
		var functions strings.Builder
		for k := range max(o.streams, 1) {
			has := fmt.Sprintf("port: {mode: direct, name: %s}", port(k))
			switch {
			case o.rdmaMTU > 0:
				has = "guest: {unix: bare}"
			case o.guestPorts:
				t.ports[i] = filepath.Join(run, fmt.Sprintf("port%d.sock", me))
				has = fmt.Sprintf("port: {type: vhost-user, socket: %s}", t.ports[i])
			}
			fmt.Fprintf(&functions, "      - {vf: %d, tenant: 7, address: %s, %s}\n", k+1, boxAddress(n+k, me), has)
		}
		socket := filepath.Join(run, fmt.Sprintf("nic%d.ctl", me))
		config := filepath.Join(run, fmt.Sprintf("nic%d.yaml", me))
		b.must(os.WriteFile(config, fmt.Appendf(nil, `
nic: {host: %[12]d%[16]s}
control: %[3]s
uplink: {%[4]s, mtu: %[6]d, superframes: %[7]s}
rdma: {mtu: %[14]d}
cm: {listen: "%[8]s", identity: %[10]s}
peers:
  - {host: %[13]d, underlay: %[2]s, cm: "%[9]s", identity: "vnic://bench/host/%[13]d", tenants: [7]}
functions:
  - pf: 0
    vfs:
%[11]sattach:
  - {type: unix, name: bare, socket: %[15]s}
`, me, under(peer), socket, o.uplink(n, me), boxBridge, b.mtu, o.superframes, cm[i], cm[1-i], keys, functions.String(), host(me), host(peer),
			cmp.Or(o.rdmaMTU, 1024), guest, o.threads(i)), 0o644))
		log := filepath.Join(run, fmt.Sprintf("nic%d.log", me))
		start := func() (err error) {
			t.nics[i], err = labkit.Start(port(0), log, on(o.keepTo, vnictest.Program(b.t), "run", "-c", config)...)
			return err
		}
		if o.inside {
			b.must(b.spaces[i].Do(start))
		} else {
			b.must(start())
		}
		p := t.nics[i]
		if i == 0 {
			t.control = socket
		}
		t.stop = append(t.stop, func() { p.Stop(5 * time.Second) })
		vnictest.Eventually(b.t, "vnic run", func() error {
			_, err := control.NewClient(socket).NIC(b.t.Context())
			if text, _ := os.ReadFile(log); err != nil {
				err = fmt.Errorf("%w\n%s", err, text)
			}
			return err
		})
		for k := range max(o.streams, 1) {
			address := boxAddress(n+k, me) + "/24"
			switch {
			case o.rdmaMTU > 0 || o.guestPorts:
			case o.inside:
				b.must(b.spaces[i].Do(func() error { return netns.Up(port(k), address) }))
			default:
				b.must(b.spaces[i].Take(port(k), address))
			}
		}
	}
	return t
}

// uplink returns keys of the section uplink of the NIC in a box.
func (o vnicOptions) uplink(n, box int) string {
	address := fmt.Sprintf(boxUnderlay, n, box)
	if o.udp {
		return fmt.Sprintf(`type: udp, listen: "%s:1000"`, address)
	}
	bridge := boxBridge
	if o.inside {
		bridge = fmt.Sprintf("br%d", n)
	}
	return fmt.Sprintf("name: up%d-%d, bridge: %s, address: %s/24", n, box, bridge, address)
}

// connect gives the boxes a wire for NICs that run inside: with addresses, or in a bridge for TAPs.
// The NICs' connection managers have addresses of their own on it.
func (b *boxes) connect(n int, udp bool) {
	b.t.Helper()
	wire, bridge := fmt.Sprintf("w%d-", n), fmt.Sprintf("br%d", n)
	b.wires(wire, nil)
	for i, s := range b.spaces {
		own := fmt.Sprintf("10.96.%d.%d/24", n, i+1)
		b.must(s.Do(func() error {
			if udp {
				return netns.Up(wire, own, fmt.Sprintf(boxUnderlay, n, i+1)+"/24")
			}
			if err := tap.NewBridge(bridge, b.mtu); err != nil {
				return err
			}
			if err := labkit.Plug(wire, bridge); err != nil {
				return err
			}
			return netns.Up(bridge, own)
		}))
	}
}

// threads returns the keys of the section nic for the NIC's threads and their processors.
func (o vnicOptions) threads(box int) string {
	switch {
	case o.keepTo != nil:
		return fmt.Sprintf(", shards: %d, cpu: [%s]", len(o.keepTo), list(o.keepTo))
	case o.processors != nil:
		return fmt.Sprintf(", shards: 1, cpu: [%d]", o.processors[box]%runtime.NumCPU())
	default:
		return ""
	}
}

// on returns a command line that keeps a command on these processors, or on any if nil.
func on(processors []int, argv ...string) []string {
	if processors == nil {
		return argv
	}
	return append([]string{"taskset", "-c", list(processors)}, argv...)
}

// list formats processors for taskset and for the section nic.
func list(processors []int) string {
	var s []string
	for _, cpu := range processors {
		s = append(s, strconv.Itoa(cpu))
	}
	return strings.Join(s, ",")
}

// in runs a program in a box and returns its output.
func (b *boxes) in(box int, argv ...string) (string, error) {
	var out, errs strings.Builder
	var p *labkit.Process
	err := b.spaces[box].Do(func() (err error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		p, err = labkit.StartCommand(argv[0], cmd)
		return err
	})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done:
	case <-time.After(60 * time.Second):
		p.Stop(0)
	}
	if p.Err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), p.Err, errs.String())
	}
	return out.String(), nil
}
