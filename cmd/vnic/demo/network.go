package demo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// Links of the demo's hosts.
const (
	underlayLink   = "vnic-wire" // to the other host, in the bridge: the underlay
	managementLink = "vnic-mgmt" // to the other host, with the host's own address
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
			labkit.Veth(underlayLink, underlayLink+"2", MTU), labkit.Plug(underlayLink, Bridge), netns.Up(underlayLink), b.Take(underlayLink+"2"),
			labkit.Veth(managementLink, managementLink+"2", 0), netns.Up(managementLink, hostIP(&s.o, 1)+"/24"), b.Take(managementLink+"2", hostIP(&s.o, 2)+"/24"),
			s.watch(),
		)
	})
	if err == nil {
		err = b.Do(func() error { return labkit.Plug(underlayLink+"2", Bridge) })
	}
	if err != nil {
		return err
	}
	s.r.step("network: two private namespaces joined by a veth between bridges %s, all its traffic recorded", Bridge)
	return nil
}

// furnish creates a host's bridge, and the bridge and TAP that connect the function's port with the
// guest's interface.
func (s *scene) furnish(h *Host) error {
	// The kernel must not send packets of its own over the wire.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := tap.NewBridge(Bridge, MTU); err != nil {
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
	h.GuestTAPFile = f
	s.later(f.Close)
	return nil
}

func (s *scene) watch() (err error) {
	s.sniffer, err = capture.Sniff(Bridge, filepath.Join(s.out, "bridge.pcapng"))
	return err
}
