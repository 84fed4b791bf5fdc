package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
)

// TestASmallerMTUOnTheWayIsFoundAndKept joins the bridges of two NICs, whose uplinks have an MTU of
// 4500, by a cable that carries 1500 and drops what is longer without a word.
func TestASmallerMTUOnTheWayIsFoundAndKept(t *testing.T) {
	const uplink, cable = 4500, 1500
	change := func(i int, c *config.Config) {
		c.Uplink.MTU, c.RDMA.MTU, c.Uplink.Bridge, c.Uplink.ProbeMTU = uplink, 4096, fmt.Sprintf("br%d", i), config.ProbeMTUAuto
		c.Functions[0].VFs[0].Port.MTU = 0
		c.SetPortDefaults()
		if i == 0 {
			joinBridge(t, cable)
		}
	}
	besidePorts(t, change, func(w *world, a, b *namespace) {
		a.up("192.168.100.11/24")
		b.up("192.168.100.21/24")
		w.waitTunnels()
		w.until("the MTU of the path is known", func() bool {
			return slices.Max(found(w)) < uplink
		})
		mtus := found(w)
		for i := range w.nics {
			if mtus[i] < cable || mtus[i] > cable+4 { // a veth leaves room for a VLAN tag
				t.Errorf("host %d takes the MTU of the path for %d", i+1, mtus[i])
			}
			v, err := w.nics[i].NIC(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if note := v.Peers[0].Note; !strings.Contains(note, fmt.Sprintf("packets of %d bytes", mtus[i])) || !strings.Contains(note, "4500") {
				t.Errorf("`show nic` of host %d says of its peer: %q", i+1, note)
			}
		}
		transfer(t, a, b, "192.168.100.21", 1<<20)
		transfer(t, b, a, "192.168.100.11", 1<<20)

		x, y := newEndpoint(t, w.open(0, "pf0.vf2")), newEndpoint(t, w.open(1, "pf0.vf2"))
		connect(t, x, y, 1)
		for _, e := range []*endpoint{x, y} {
			for i := range e.mr.Bytes() {
				e.mr.Bytes()[i] = byte(i * 2654435761 >> 13)
			}
		}
		clear(y.mr.Bytes())
		x.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{x.mr.SGE(0, 65536)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		if string(x.mr.Bytes()[:65536]) != string(y.mr.Bytes()[:65536]) {
			t.Error("a WRITE of 64 KiB arrived with other bytes")
		}
	})
}

// joinBridge makes br1 and joins it with br0.
func joinBridge(t *testing.T, mtu int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tap.NewBridge("br1", tapMTU))
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cable0", MTU: mtu}, PeerName: "cable1", PeerMTU: uint32(mtu)}))
	for i := range 2 {
		end, err := netlink.LinkByName(fmt.Sprintf("cable%d", i))
		must(err)
		br, err := netlink.LinkByName(fmt.Sprintf("br%d", i))
		must(err)
		must(netlink.LinkSetMTU(br, tapMTU)) // a bridge's own MTU, once set, does not follow that of its ports
		must(netlink.LinkSetMaster(end, br))
		must(netlink.LinkSetUp(end))
	}
}

// found returns what each NIC knows of the path to the other.
func found(w *world) (mtus []int) {
	w.t.Helper()
	for _, n := range w.nics {
		v, err := n.NIC(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		mtus = append(mtus, v.Peers[0].PathMTU)
	}
	return mtus
}
