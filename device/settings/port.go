package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
)

// setPort reads "name=vp1,mode=bridged,bridge=br1", which changes what the function's
// port is, or none.
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
		err = errors.New("not known; there are name, mode, bridge, netns, mtu, mac, persist, assign and address")
	}
	return err
}

// portText is a port as setPort reads it, whatever it was before.
func portText(p *config.Port) string {
	if p == nil {
		return "none"
	}
	parts := []string{"name=" + p.Name, "mode=" + p.Mode, "bridge=" + p.Bridge, "netns=" + p.Netns, fmt.Sprintf("mtu=%d", p.MTU), "persist=" + onOffText(p.Persist), "assign=" + onOffText(*p.Assign)}
	if p.Mode == config.PortBridged {
		parts = append(parts, "mac="+p.MAC.String())
	}
	parts = append(parts, "address=none")
	for _, a := range p.Addresses {
		parts = append(parts, "address="+a.String())
	}
	return strings.Join(parts, ",")
}
