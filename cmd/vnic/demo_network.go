package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// Links of the demo's hosts.
const (
	demoWire = "vnic-wire" // to the other host, in the bridge: the underlay
	demoHome = "vnic-mgmt" // to the other host, with the host's own address
)

// network creates a namespace for each host and connects them by two veth pairs: one for the NICs,
// one for the hosts themselves. It starts a sniffer, independent of both NICs, on the first one.
func (s *scene) network() error {
	for _, h := range s.hosts {
		space, err := netns.NewSpace()
		if err != nil {
			return err
		}
		h.space = space
		s.later(space.Close)
		if err := space.Do(func() error { return s.furnish(h) }); err != nil {
			return err
		}
	}
	a, b := s.hosts[0].space, s.hosts[1].space
	err := a.Do(func() error {
		return errors.Join(
			veth(demoWire, demoWire+"2", demoMTU), plug(demoWire, demoBridge), netns.Up(demoWire), b.Take(demoWire+"2"),
			veth(demoHome, demoHome+"2", 0), netns.Up(demoHome, hostIP(&s.o, 1)+"/24"), b.Take(demoHome+"2", hostIP(&s.o, 2)+"/24"),
			s.watch(),
		)
	})
	if err == nil {
		err = b.Do(func() error { return plug(demoWire+"2", demoBridge) })
	}
	if err != nil {
		return err
	}
	s.r.step("network: two private namespaces joined by a veth between bridges %s, all its traffic recorded", demoBridge)
	return nil
}

// furnish creates a host's bridge, and the bridge and TAP that connect the function's port with the
// guest's interface.
func (s *scene) furnish(h *demoHost) error {
	// The kernel must not send packets of its own over the wire.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := tap.NewBridge(demoBridge, demoMTU); err != nil {
		return err
	}
	if !h.Ethernet || h.PortSocket != "" {
		return nil
	}
	if err := tap.NewBridge(h.PortBridge, h.PortMTU); err != nil {
		return err
	}
	f, err := tap.OpenGuest(h.GuestTAP, h.PortBridge, h.PortMTU)
	if err != nil {
		return err
	}
	h.guestTAP = f
	s.later(f.Close)
	return nil
}

func (s *scene) watch() (err error) {
	s.sniffer, err = capture.Sniff(demoBridge, filepath.Join(s.out, "bridge.pcapng"))
	return err
}

// veth creates a veth pair.
func veth(name, peer string, mtu int) error {
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: peer, PeerMTU: uint32(mtu)}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("veth %s: %w", name, err)
	}
	return nil
}

// plug adds a link to a bridge.
func plug(name, bridge string) error {
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
