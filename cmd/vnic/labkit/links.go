package labkit

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// Veth creates a veth pair.
func Veth(name, peer string, mtu int) error {
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: peer, PeerMTU: uint32(mtu)}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("veth %s: %w", name, err)
	}
	return nil
}

// Plug adds a link to a bridge.
func Plug(name, bridge string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("%s: %w", bridge, err)
	}
	if err := netlink.LinkSetMaster(l, b); err != nil {
		return fmt.Errorf("%s into %s: %w", name, bridge, err)
	}
	return nil
}

// FreePorts returns two TCP ports of the loopback interface that are free at the moment.
func FreePorts() (ports [2]int, err error) {
	var ls [2]net.Listener
	for i := range ls {
		if ls[i], err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
			return ports, err
		}
		defer ls[i].Close()
		ports[i] = ls[i].Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
