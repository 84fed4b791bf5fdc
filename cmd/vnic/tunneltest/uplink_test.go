package tunneltest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
)

// routed joins hosts by a router, over which their NICs speak UDP:
//
//	host 1 wire ═ r0 router r1 ═ wire host 2
type routed struct {
	mtu    int
	v6     bool
	shards int
	router *netns.Space
}

func (r *routed) cm(i int) string { return fmt.Sprintf("10.96.%d.2", i+1) }

func (r *routed) gateway(i int) string { return fmt.Sprintf("10.96.%d.1", i+1) }

func (r *routed) address(i int) string {
	if r.v6 {
		return fmt.Sprintf("fd96:0:0:%d::2", i+1)
	}
	return r.cm(i)
}

func (r *routed) nic() string { return fmt.Sprintf(", shards: %d", max(r.shards, 1)) }

func (r *routed) room() int {
	if r.v6 {
		return r.mtu - 88
	}
	return r.mtu - 68
}

func at(address string, port int) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return fmt.Sprintf("%s:%d", address, port)
}

func (r *routed) uplink(i int) string {
	return fmt.Sprintf(`{type: udp, listen: "%s", mtu: %d}`, at(r.address(i), 1000+i), r.mtu)
}

func (r *routed) underlay(i int) string { return at(r.address(i), 1000+i) }

// join makes the router and its wires.
func (r *routed) join(p *pairOfHosts) (err error) {
	if r.router, err = netns.NewSpace(); err != nil {
		return err
	}
	p.t.Cleanup(func() { _ = r.router.Close() })
	setting := func(name, value string) error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }
	for _, s := range []*netns.Space{r.router, p.hosts[0], p.hosts[1]} {
		err := s.Do(func() error {
			// Addresses are usable at once, and stay while a link is down.
			return errors.Join(setting("ipv6/conf/all/accept_dad", "0"), setting("ipv6/conf/default/accept_dad", "0"), setting("ipv6/conf/all/keep_addr_on_down", "1"))
		})
		if err != nil {
			return err
		}
	}
	err = r.router.Do(func() error {
		if err := setting("ipv4/ip_forward", "1"); err != nil {
			return err
		}
		return setting("ipv6/conf/all/forwarding", "1")
	})
	for i := range p.hosts {
		if err != nil {
			return err
		}
		own, six := fmt.Sprintf("r%d", i), fmt.Sprintf("fd96:0:0:%d::1", i+1)
		err = r.router.Do(func() error {
			if err := labkit.Veth(own, "wire", r.mtu); err != nil {
				return err
			}
			if err := netns.Up(own, r.gateway(i)+"/24", six+"/64"); err != nil {
				return err
			}
			return p.hosts[i].Take("wire", r.cm(i)+"/24", fmt.Sprintf("fd96:0:0:%d::2/64", i+1))
		})
		if err != nil {
			return err
		}
		err = p.hosts[i].Do(func() error { return r.route(i) })
	}
	return err
}

// route gives a host its route to the other one.
func (r *routed) route(i int) error {
	return onLink("wire", func(l netlink.Link) error {
		for _, gw := range []string{r.gateway(i), fmt.Sprintf("fd96:0:0:%d::1", i+1)} {
			if err := netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gw)}); err != nil {
				return fmt.Errorf("route by %s: %w", gw, err)
			}
		}
		return nil
	})
}

// wire sets the router's end of the wire, so that the hosts keep their routes.
func (r *routed) wire(set func(netlink.Link) error) error {
	return r.router.Do(func() error { return onLink("r0", set) })
}

// TestLongTwoHostsByUDP is TestTwoHosts with uplinks over UDP, over either IP version and MTU,
// through a router.
func TestLongTwoHostsByUDP(t *testing.T) {
	for _, r := range []*routed{{mtu: 1500}, {mtu: 9000, v6: true, shards: 2}} {
		t.Run(fmt.Sprintf("mtu %d IPv6 %v", r.mtu, r.v6), func(t *testing.T) { betweenHosts(t, r) })
	}
}

// TestARouterThatLowersTheMTU: when a router on the way carries only shorter packets than before,
// the NICs find out, TCP and RDMA go on, and `show nic` says so.
func TestARouterThatLowersTheMTU(t *testing.T) {
	vnictest.RequireRoot(t)
	netns.Run(t, func() {
		r := &routed{mtu: 9000}
		p := newPairOfHosts(t, r)
		p.start(0, 1)
		p.must(p.guests[1].Do(func() error { return netns.Up("eth0", guestAddress(1)+"/24") }))
		p.must(r.wire(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 4000) }))
		p.pathMTU(4000)
		s := p.stream()
		s.moves(t, "at first")
		p.must(r.wire(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1500) }))
		began := time.Now()
		s.moves(t, "after the router's MTU became smaller")
		t.Logf("TCP went on after %v", time.Since(began))
		p.pathMTU(1500)
		p.writes()
		s.finish(t)
	})
}

// pathMTU waits until both NICs know what the path carries. A veth that receives leaves room for a
// VLAN tag.
func (p *pairOfHosts) pathMTU(want int) {
	p.t.Helper()
	for i := range p.nics {
		vnictest.Eventually(p.t, "MTU of the path", func() error {
			n, err := p.control(i).NIC(context.Background())
			if err == nil && (n.Peers[0].PathMTU < want || n.Peers[0].PathMTU > want+4) {
				err = fmt.Errorf("host %d: %+v, want %d", i+1, n.Peers[0], want)
			}
			return err
		})
	}
}

// writes has a client of the first NIC write 64 KiB to one of the second.
func (p *pairOfHosts) writes() {
	p.t.Helper()
	command := func(i int, more ...string) *exec.Cmd {
		return exec.Command(vnictest.Program(p.t), append([]string{"guest", "perf", "-d", "unix://" + p.file("sock", i), "write_bw", "-s", "65536", "-n", "100"}, more...)...)
	}
	server, err := labkit.StartCommand("server", command(1))
	p.must(err)
	defer server.Stop(time.Second)
	if out, err := command(0, guestAddress(1)).CombinedOutput(); err != nil {
		p.t.Errorf("write_bw: %v: %s", err, out)
	}
}
