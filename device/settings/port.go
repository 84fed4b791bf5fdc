package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
)

// setPort parses "name=vp1,mode=bridged,bridge=br1" and changes the named fields of the function's
// port, or removes it ("none").
func setPort(to *config.Function, text string) error {
	if text == "none" {
		to.Port = nil
		return nil
	}
	p := config.Port{}
	if to.Port != nil {
		p = *to.Port
		p.Addresses = slices.Clone(p.Addresses)
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=VALUE; write as name=vp1,mode=direct, or none", part)
		}
		if err := setPortPart(&p, name, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	to.Port = &p
	return nil
}

func setPortPart(p *config.Port, name, value string) (err error) {
	switch name {
	case "type":
		if value != p.Type { // a new type keeps only these fields
			*p = config.Port{Type: value, MTU: p.MTU, Addresses: p.Addresses, Assign: p.Assign}
		}
	case "socket":
		p.Socket = value
	case "listen":
		p.Listen = value
	case "queues":
		var v uint32
		err = number(&v, value)
		p.Queues = int(v)
	case "name":
		p.Name = value
	case "mode":
		if p.Mode != value {
			p.Mode, p.MAC = value, config.MAC{}
		}
	case "bridge":
		p.Bridge = value
	case "netns":
		p.Netns = value
	case "mtu":
		var v uint32
		err = number(&v, value)
		p.MTU = int(v)
	case "mac":
		err = p.MAC.UnmarshalText([]byte(value))
	case "persist":
		err = onOff(&p.Persist, value)
	case "assign":
		p.Assign = new(bool)
		err = onOff(p.Assign, value)
	case "address":
		if value == "none" {
			p.Addresses = nil
			return nil
		}
		a, bad := netip.ParseAddr(value)
		if err = bad; err == nil {
			p.Addresses = append(p.Addresses, a)
		}
	default:
		err = errors.New("not known; there are type, name, mode, bridge, netns, mtu, mac, persist, assign, address, socket, listen and queues")
	}
	return err
}

// portText writes a port in the form that setPort parses. It names every field, so the port before
// does not matter.
func portText(p *config.Port) string {
	if p == nil {
		return "none"
	}
	parts := []string{"type=" + p.Type, "name=" + p.Name, fmt.Sprintf("mtu=%d", p.MTU), "assign=" + onOffText(*p.Assign)}
	if p.Type == config.PortVhostUser {
		parts = append(parts, "socket="+p.Socket, "listen="+p.Listen, fmt.Sprintf("queues=%d", p.Queues))
	} else {
		parts = append(parts, "mode="+p.Mode, "bridge="+p.Bridge, "netns="+p.Netns, "persist="+onOffText(p.Persist))
	}
	if p.Mode == config.PortBridged {
		parts = append(parts, "mac="+p.MAC.String())
	}
	parts = append(parts, "address=none")
	for _, a := range p.Addresses {
		parts = append(parts, "address="+a.String())
	}
	return strings.Join(parts, ",")
}
