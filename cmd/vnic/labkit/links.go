package labkit

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// FreePorts returns three ports of 127.0.0.1 beside each other that are free at the moment, for TCP and UDP.
// They are below those that the kernel gives to clients, of which one could take them before they are
// used.
func FreePorts() (ports [3]int, err error) {
	for range 1000 {
		first := 10000 + rand.IntN(20000)
		if ports = [3]int{first, first + 1, first + 2}; isFree(ports[0]) && isFree(ports[1]) && isFree(ports[2]) {
			return ports, nil
		}
	}
	return ports, errors.New("no three ports of 127.0.0.1 beside each other are free")
}

func isFree(port int) bool {
	at := fmt.Sprintf("127.0.0.1:%d", port)
	l, err := net.Listen("tcp4", at)
	if err != nil {
		return false
	}
	defer l.Close()
	c, err := net.ListenPacket("udp4", at)
	if err != nil {
		return false
	}
	return c.Close() == nil
}
