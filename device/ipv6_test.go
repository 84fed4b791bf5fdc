package device

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// TestIPv6OverTAPs runs every operation over TAPs in the three devicetest.Combinations with IPv6.
// gopacket checks the frames on the bridge, the kernel checks neighbour discovery: it resolves a
// NIC's address, and finds it in use.
func TestIPv6OverTAPs(t *testing.T) {
	devicetest.Combinations(t, func(t *testing.T, outer, inner int) {
		if outer == 4 && inner == 4 {
			return // done by TestOperationsOverTAPs
		}
		netns.Run(t, func() { testIPv6OverTAPs(t, outer, inner) })
	})
}

func testIPv6OverTAPs(t *testing.T, outer, inner int) {
	if err := tap.NewBridge("vbr0", devicetest.MTU); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "vbr0.pcapng")
	var sniffer *capture.Sniffer
	w := newWorldWith(t, func(name string) (tap.Uplink, error) {
		p, err := tap.Open(tap.Config{Name: name, MTU: devicetest.MTU, Bridge: "vbr0", Backend: tap.BackendNative})
		if err == nil && sniffer == nil {
			sniffer, err = capture.Sniff(name, path)
		}
		return p, err
	}, devicetest.IPVersions(outer, inner))
	testOperations(t, w)
	if outer == 6 {
		kernelResolves(t, w)
	}
	counts, err := sniffer.Close()
	if err != nil || counts.PSP == 0 || counts.Other != 0 || outer == 6 && (counts.ND == 0 || counts.ARP != 0) || outer == 4 && counts.ARP == 0 {
		t.Errorf("%+v, %v", counts, err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	sealed := 0
	for {
		frame, _, err := r.ReadPacketData()
		if err != nil {
			break
		}
		if bytes.Contains(frame, []byte("to the NIC")) {
			continue // a frame of the kernel
		}
		if devicetest.CheckSealed(t, frame, outer, inner) {
			sealed++
		}
	}
	if sealed < 100 {
		t.Errorf("%d sealed frames", sealed)
	}
}

// kernelResolves gives the bridge an address, lets the kernel find NIC 1, and then lets it try to
// take NIC 1's address.
func kernelResolves(t *testing.T, w *world) {
	link, err := netlink.LinkByName("vbr0")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/vbr0/disable_ipv6", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	add := func(cidr string, flags int) {
		t.Helper()
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = flags
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
	add("fd00::ff/64", unix.IFA_F_NODAD)
	conn, err := net.Dial("udp6", "[fd00::1]:1000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mac := w.nics[0].cfg.Uplink.MAC
	w.until("the kernel knows the NIC", func() bool {
		_, _ = conn.Write([]byte("to the NIC"))
		list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list {
			if n.IP.Equal(net.ParseIP("fd00::1")) && bytes.Equal(n.HardwareAddr, mac[:]) {
				return true
			}
		}
		return false
	})
	add("fd00::1/64", 0)
	w.until("the kernel finds the address taken", func() bool {
		list, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.IP.Equal(net.ParseIP("fd00::1")) && a.Flags&unix.IFA_F_DADFAILED != 0 {
				return true
			}
		}
		return false
	})
}
