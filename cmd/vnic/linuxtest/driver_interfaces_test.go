package linuxtest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vf"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
)

// Further addresses of the first guest: one that the configuration lists for its first function,
// and that of its second function.
const (
	listedIP = "192.168.100.111"
	secondIP = "192.168.100.31"
)

// withSecond returns a machine for the first guest with the interface of a second function, and what gives
// that function to the guest in the NIC's configuration, and the first one a further address.
func withSecond(m qemu.Machine) (two qemu.Machine, change func(l *vnictest.Lab)) {
	second := &qemu.Port{Function: "pf0.vf2", Queues: 1, MAC: config.FunctionMAC("1", 0, 2).String(), Speed: int(config.DefaultUplinkSpeed / 1e6)}
	m.NICs = []qemu.NIC{{Port: second}}
	return m, func(l *vnictest.Lab) {
		h := l.Hosts[0]
		second.Socket, second.MTU = filepath.Join(filepath.Dir(h.Socket), "second.sock"), h.PortMTU
		port := fmt.Sprintf("port: {type: vhost-user, socket: %s, mtu: %d", h.PortSocket, h.PortMTU)
		l.Rewrite(0, port+"}", port+", addresses: ["+listedIP+`]}
      - vf: 2
        tenant: 100
        address: `+secondIP+`
        guest: {cid: 1001}
        mac: `+second.MAC+`
        port: {type: vhost-user, socket: `+second.Socket+fmt.Sprintf(", mtu: %d}", second.MTU))
	}
}

// TestLongDriverInterfaces: an RDMA device belongs to the interface whose permanent MAC address is
// its function's. It stays with the interface when the guest gives that another name or MAC
// address, moves it to another network namespace (in both modes of rdma system, interface or device
// first), puts it into a bond of one or two, or puts macvlan, ipvlan or VLANs on it. After each
// step programs run, the kernel has not complained about a valid GID, and it says why a device came
// or went.
func TestLongDriverInterfaces(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{modules: []string{"bonding", "macvlan", "ipvlan", "8021q"}})
	two, change := withSecond(m)
	makeDriverLab(t, vnictest.Options{Windows: true}, [2]qemu.Machine{two, m}, change, func(l *driverLab) {
		defer l.keepConsoles()
		i := &interfaces{driverLab: l, t: t, g: l.guests[0]}
		i.begin()
		for _, step := range []struct {
			name string
			do   func()
		}{
			{"listed", i.listed},
			{"renamed", i.renamed},
			{"down", i.down},
			{"MAC", i.anotherMAC},
			{"VLAN", i.vlan},
			{"above", i.above},
			{"shared", i.shared},
			{"exclusive", i.exclusive},
			{"bonds", i.bonds},
			{"removed", i.removed},
			{"NIC's MAC", i.functionMAC},
		} {
			start := time.Now()
			step.do()
			i.together(step.name)
			t.Logf("%s: %v", step.name, time.Since(start).Round(time.Millisecond))
		}
		i.checkLog()
	})
}

// interfaces is a lab whose first guest has two functions, each with an interface.
type interfaces struct {
	*driverLab
	t   testing.TB
	g   *shell    // the first guest
	dev [2]string // its RDMA devices, of eth0 and eth1
}

func (i *interfaces) begin() {
	i.g.must("mkdir -p /var/run && ip netns attach init $$ && sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0 && ip addr replace " + secondIP + "/24 dev eth1 && ip link set eth1 up")
	// Two interfaces are in one network: each answers ARP for its own address only, and asks with
	// that address.
	i.g.must("sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
	i.g.must("ip route flush dev eth1 proto kernel; ip route add " + i.Hosts[1].TenantIP + " dev eth0 src " + i.Hosts[0].TenantIP)
	i.dev = [2]string{i.beside("eth0"), i.beside("eth1")}
	i.ready(0)
	i.noComplaints("at boot")
}

// beside returns the RDMA device of an interface of the guest.
func (i *interfaces) beside(netdev string) string {
	i.t.Helper()
	link := "rdma link | grep -w 'netdev " + netdev + "'"
	i.g.eventually(link)
	return strings.Split(strings.Fields(i.g.must(link))[1], "/")[0]
}

// together checks after a step that each device belongs to its interface again, in init's
// namespace, and that the first has its address.
func (i *interfaces) together(step string) {
	i.t.Helper()
	for n, eth := range []string{"eth0", "eth1"} {
		if dev := i.beside(eth); dev != i.dev[n] {
			i.t.Fatalf("after %s %s is beside %s, before %s was", step, dev, eth, i.dev[n])
		}
	}
	i.rping("", i.Hosts[0].TenantIP)
}

// index returns the index of an address in a device's GID table, in a namespace of the guest, as the address
// of the interface that has it: the kernel takes the entry of another interface away a while later.
func (i *interfaces) index(in, dev, ip string) string {
	i.t.Helper()
	port := "/sys/class/infiniband/" + dev + "/ports/1"
	netdev := fmt.Sprintf("$(%s ip -o addr show to %s | cut -d' ' -f2)", in, ip)
	i.g.eventually(fmt.Sprintf("(for g in $(%[1]s grep -li '%[2]s' -r %[3]s/gids/); do %[1]s grep -x %[4]s %[3]s/gid_attrs/ndevs/${g##*/} && echo ${g##*/} >/tmp/index; done | grep .)",
		in, gidText(ip), port, netdev))
	return i.g.must("cat /tmp/index")
}

// runPrograms runs programs between an address of the first guest's device, in a namespace, and the
// second guest: by GID index, and by the connection manager in both directions.
func (i *interfaces) runPrograms(in, dev, ip string) {
	i.t.Helper()
	peer := i.Hosts[1].TenantIP
	server := i.expand(1, "ibv_rc_pingpong {dev} -g {gid} -n 50")
	i.pair(i.t, server, fmt.Sprintf("%s ibv_rc_pingpong -d %s -g %s -n 50 %s", in, dev, i.index(in, dev, ip), peer))
	i.rping(in, ip)
	back := &driverLab{Lab: i.Lab, guests: [2]*shell{i.guests[1], i.guests[0]}}
	back.pair(i.t, in+" rping -s -C 3 -a "+ip, "rping -c -C 3 -a "+ip)
}

// rping connects from an address of the first guest to the second by the connection manager.
func (i *interfaces) rping(in, ip string) {
	i.t.Helper()
	i.pair(i.t, "rping -s -C 3", fmt.Sprintf("%s rping -c -C 3 -I %s -a %s", in, ip, i.Hosts[1].TenantIP))
}

// noComplaints fails if the kernel has complained about a GID since the last call of this or of ignoreComplaints.
func (i *interfaces) noComplaints(when string) {
	i.t.Helper()
	const complaint = "grep -iE 'GID add failed|unable to add gid|is not the function|is the address of another'"
	if said, status := i.g.run(`dmesg | tail -n +$((${seen:-0} + 1)) | ` + complaint); status == 0 {
		i.t.Errorf("%s the kernel complains:\n%s", when, said)
	}
	i.ignoreComplaints()
}

// ignoreComplaints ignores the complaints about GIDs so far.
func (i *interfaces) ignoreComplaints() { i.g.must("seen=$(dmesg | wc -l)") }

// address gives an interface the function's address, in a namespace (as an option of ip).
func (i *interfaces) address(ns, netdev string) {
	i.t.Helper()
	i.g.must(fmt.Sprintf("ip %s addr replace %s/24 dev %s && ip %[1]s link set %[3]s up && ip %[1]s route replace %[4]s dev %[3]s src %[2]s", ns, i.Hosts[0].TenantIP, netdev, i.Hosts[1].TenantIP))
}

// set changes a setting of the first guest's first function.
func (i *interfaces) set(key, to string) {
	i.t.Helper()
	if out, err := vnictest.Here(i.t, vf.Command(), "set", "-s", i.Hosts[0].Control, "pf0.vf1", key, to); err != nil {
		i.t.Fatal(err, out)
	}
}

func (i *interfaces) listed() {
	i.g.must("ip addr add " + listedIP + "/24 dev eth0")
	i.runPrograms("", i.dev[0], listedIP)
	i.g.must("ip addr del " + listedIP + "/24 dev eth0")
	i.noComplaints("of an address that is listed")
}

func (i *interfaces) renamed() {
	i.g.must("ip link set eth0 down && ip link set eth0 name data")
	i.address("", "data")
	if dev := i.beside("data"); dev != i.dev[0] {
		i.t.Errorf("%s is beside the renamed interface, before %s was", dev, i.dev[0])
	}
	i.runPrograms("", i.dev[0], i.Hosts[0].TenantIP)
	i.g.must("ip link set data down && ip link set data name eth0")
	i.address("", "eth0")
	i.noComplaints("of a rename")
}

func (i *interfaces) down() {
	state := "cat /sys/class/infiniband/" + i.dev[0] + "/ports/1/state"
	i.g.must("ip link set eth0 down && " + state + " | grep DOWN")
	i.address("", "eth0")
	i.g.eventually(state + " | grep ACTIVE")
}

// anotherMAC gives the interface another MAC address. Frames from it pass if the function is
// trusted.
func (i *interfaces) anotherMAC() {
	const mac = "02:00:00:00:00:99"
	own := i.Hosts[0].GuestMAC
	set := func(mac string) { i.g.must("ip link set eth0 address " + mac) }
	set(mac)
	i.beside("eth0")
	i.g.eventually("dmesg | grep -q '0000:00ff:fe00:0099 is not the function'") // the link-local address of that MAC address
	set(own)
	i.address("", "eth0")
	i.index("", i.dev[0], i.Hosts[0].TenantIP)
	i.ignoreComplaints()
	i.set("trust", "on")
	set(mac)
	i.address("", "eth0")
	i.g.eventually("grep -qi '00ff:fe00:0099$' -r /sys/class/infiniband/" + i.dev[0] + "/ports/1/gids/")
	i.runPrograms("", i.dev[0], i.Hosts[0].TenantIP)
	set(own)
	i.address("", "eth0")
	i.set("trust", "off")
	i.noComplaints("of a trusted function's other MAC address")
}

// vlan puts a VLAN on the interface, for which the NIC carries nothing. The kernel takes its
// addresses as GIDs; a program that sends from one gets an error.
func (i *interfaces) vlan() {
	i.g.must("ip link add link eth0 name eth0.5 type vlan id 5 && ip addr add 10.5.0.1/24 dev eth0.5 && ip link set eth0.5 up")
	pingpong := fmt.Sprintf("ibv_rc_pingpong -d %s -n 1 -g %s", i.dev[0], i.index("", i.dev[0], "10.5.0.1"))
	i.g.must("rm -f /tmp/vlan*; ((" + pingpong + " >/tmp/vlan 2>&1; touch /tmp/vlan-over) &)")
	i.g.eventually(pingpong + " 10.5.0.1; test -e /tmp/vlan-over")
	if said := i.g.must("cat /tmp/vlan"); !strings.Contains(said, "Failed to modify QP to RTR") {
		i.t.Errorf("from an address of a VLAN:\n%s", said)
	}
	i.g.must("dmesg | grep 'carries no VLAN tags'; ip link del eth0.5")
	i.noComplaints("of a VLAN")
}

// above puts interfaces that use eth0 into a namespace: they can use RDMA, too.
func (i *interfaces) above() {
	i.g.must("ip netns add pod && ip -n pod link set lo up")
	for _, kind := range []string{"ipvlan mode l2", "macvlan mode passthru"} { // both have the MAC address of eth0
		i.g.must("ip addr flush dev eth0 && ip link add link eth0 name sub type " + kind + " && ip link set sub netns pod")
		if strings.HasPrefix(kind, "ipvlan") { // its link-local address does not follow from the MAC address alone, so it is not the function's
			i.g.must("ip -n pod link set sub addrgenmode none")
		}
		i.address("-n pod", "sub")
		i.runPrograms("ip netns exec pod", i.dev[0], i.Hosts[0].TenantIP)
		i.g.must("ip -n pod link del sub && ip link set eth0 down")
		i.address("", "eth0")
	}
	i.g.must("ip netns del pod")
	i.noComplaints("of macvlan and ipvlan")
}

// shared moves the interface while all namespaces share the RDMA devices. A program that runs is
// not disturbed.
func (i *interfaces) shared() {
	const in = "ip netns exec pod"
	endless := "ibv_rc_pingpong -p 18600 -e -n 100000000 -d "
	sent := "cat /sys/class/infiniband/" + i.dev[0] + "/ports/1/hw_counters/tx_bytes"
	goesOn := func() {
		i.g.eventually(fmt.Sprintf(`test $(%s) -gt %s`, sent, i.g.must("echo $(("+i.g.must(sent)+" + 100000))")))
	}
	i.guests[1].must("(" + endless + i.device(1) + " -g " + i.gid(1) + " >/dev/null 2>&1 &)")
	i.guests[1].eventually("ss -ltn | grep -w 18600")
	i.g.must("(" + endless + i.dev[0] + " -g " + i.index("", i.dev[0], i.Hosts[0].TenantIP) + " " + i.Hosts[1].TenantIP + " >/dev/null 2>&1 &)")
	goesOn()
	i.g.must("ip netns add pod && ip link set eth0 netns pod")
	goesOn()
	i.g.must("pkill -KILL ibv_rc_pingpong")
	i.guests[1].must("pkill -KILL ibv_rc_pingpong; true") // it may have ended with its client
	i.address("-n pod", "eth0")
	i.runPrograms(in, i.dev[0], i.Hosts[0].TenantIP)
	i.g.must("ip -n pod link set eth0 netns 1")
	i.address("", "eth0")
	i.together("moving there and back")
	i.g.must("ip link set eth0 netns pod && ip netns del pod") // the interface comes back by itself
	i.g.eventually("ip link show eth0")
	i.address("", "eth0")
	i.noComplaints("of namespaces")
}

// exclusive moves the interface and the device while each RDMA device is in one namespace only.
func (i *interfaces) exclusive() {
	const in = "ip netns exec pod"
	dev := i.dev[0]
	i.g.eventually("rdma system set netns exclusive") // possible once the last namespace is gone
	there := []string{"ip link set eth0 netns pod", "rdma dev set " + dev + " netns pod"}
	back := []string{"ip -n pod link set eth0 netns 1", in + " rdma dev set " + dev + " netns init"}
	for first := range there {
		i.g.must("ip netns add pod && " + there[first] + " && " + there[1-first])
		i.address("-n pod", "eth0")
		i.runPrograms(in, dev, i.Hosts[0].TenantIP)
		if said := i.g.must("ls /sys/class/infiniband"); said != i.dev[1] {
			i.t.Errorf("in init's namespace are %s", said)
		}
		i.g.must(back[first] + " && " + back[1-first])
		i.address("", "eth0")
		i.together("moving there and back")
		i.g.must("ip netns del pod")
	}
	i.g.must("ip netns add pod && ip link set eth0 netns pod && rdma dev set " + dev + " netns pod && ip netns del pod")
	i.g.eventually("ip link show eth0 && rdma link show " + dev + "/1")
	i.address("", "eth0")
	i.g.eventually("rdma system set netns shared")
	i.noComplaints("of exclusive namespaces")
}

// bonds makes bonds of one and of two interfaces. The second interface gets the MAC address of the
// first, and the driver is reloaded meanwhile.
func (i *interfaces) bonds() {
	own := i.Hosts[0].TenantIP
	i.g.must("ip addr flush dev eth0 && ip link add bond9 type bond mode active-backup miimon 100 && ip link set eth0 down && ip link set eth0 master bond9")
	i.address("", "bond9")
	i.runPrograms("", i.dev[0], own)
	i.noComplaints("of a bond of one")
	i.g.must("ip link set eth1 down && ip link set eth1 master bond9 && grep -i " + i.Hosts[0].GuestMAC + " /sys/class/net/eth1/address")
	i.beside("eth1")
	i.runPrograms("", i.dev[0], own)
	i.g.must("rmmod vnic && " + loadDriver)
	i.dev = [2]string{i.beside("eth0"), i.beside("eth1")}
	i.runPrograms("", i.dev[0], own)
	i.g.must("ip link del bond9 && ip addr replace " + secondIP + "/24 dev eth1 noprefixroute && ip link set eth1 up")
	i.address("", "eth0")
	i.index("", i.dev[1], secondIP)
	i.ignoreComplaints() // the second must not have the link-local address of the first
}

// removed removes the interface and adds it again: the RDMA device goes and comes with it.
func (i *interfaces) removed() {
	i.g.must("v=$(basename $(readlink -f /sys/class/net/eth0/device)) && echo $v >/sys/bus/virtio/drivers/virtio_net/unbind")
	i.g.eventually("! test -e /sys/class/infiniband/" + i.dev[0])
	i.g.must("echo $v >/sys/bus/virtio/drivers/virtio_net/bind && ip link show eth0")
	i.address("", "eth0")
	i.dev[0] = i.beside("eth0")
	i.noComplaints("of an interface that is made anew")
}

// functionMAC gives the function another MAC address at the NIC, and then the first one again.
func (i *interfaces) functionMAC() {
	i.set("mac", "02:00:00:00:00:77")
	i.g.eventually("dmesg | grep -q 'no interface has the permanent MAC address 02:00:00:00:00:77'")
	i.set("mac", i.Hosts[0].GuestMAC)
	i.address("", "eth0")
	i.dev[0] = i.beside("eth0")
	i.ignoreComplaints() // about the link-local address of the other MAC address
}

// checkLog checks that the kernel logged each device that came or went: two at boot, two when the
// driver was reloaded, one with its interface, one with its function's MAC address.
func (i *interfaces) checkLog() {
	i.g.must("dmesg | sed -n '/its interface was removed/,$p' | grep -q 'no interface has the permanent MAC address " + i.Hosts[0].GuestMAC + "'")
	said := i.g.must("dmesg | grep 'RDMA device'")
	for pattern, want := range map[string]int{
		`RDMA device \S+ comes, beside eth0$`:                                  4,
		`RDMA device \S+ comes, beside eth1$`:                                  2,
		`RDMA device \S+ goes: the driver leaves the function$`:                2,
		`RDMA device \S+ goes: its interface was removed$`:                     1,
		`RDMA device \S+ goes: `:                                               4,
		`RDMA device \S+ goes: the NIC gave the function another MAC address$`: 1,
	} {
		if n := len(regexp.MustCompile("(?m)"+pattern).FindAllString(said, -1)); n != want {
			i.t.Errorf("%d times %q, want %d:\n%s", n, pattern, want, said)
		}
	}
}
