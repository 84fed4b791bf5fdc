package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

func number[T uint32 | uint64](to *T, text string) error {
	v, err := strconv.ParseUint(text, 0, 64)
	if err != nil || uint64(T(v)) != v {
		return fmt.Errorf("%q is not a whole number from 0 to %d; write one", text, ^T(0))
	}
	*to = T(v)
	return nil
}

func quota(to *uint32, text string) error {
	if err := number(to, text); err != nil {
		return err
	}
	if *to == 0 {
		return fmt.Errorf("0 would leave the function without any; write 1 or more, or disable it")
	}
	return nil
}

func onOff(to *bool, text string) error {
	switch text {
	case "on", "true":
		*to = true
	case "off", "false":
		*to = false
	default:
		return fmt.Errorf("%q is neither on nor off; write on or off", text)
	}
	return nil
}

func onOffText(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func setWeight(to *config.Function, text string) error {
	v, err := strconv.ParseUint(text, 0, 8)
	if err != nil || v == 0 {
		return fmt.Errorf("%q is not a weight; write 1 to 255", text)
	}
	to.Weight = uint8(v)
	return nil
}

func setSpoofCheck(to *config.Function, text string) error {
	var check bool
	err := onOff(&check, text)
	to.SpoofCheck = &check
	return err
}

func setAddress(to *config.Function, text string) error {
	if text == "none" {
		to.Address = netip.Addr{}
		return nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("%q is not an IPv4 or IPv6 address; write it as 192.168.100.11", text)
	}
	to.Address = a
	return nil
}

func setGuest(to *config.Function, text string) error {
	kind, name, _ := strings.Cut(text, ":")
	switch {
	case text == "none":
		to.Guest = nil
		return nil
	case kind == "unix" && name != "":
		to.Guest = &config.Guest{Unix: name}
		return nil
	case kind == "cid":
		g := &config.Guest{}
		if number(&g.CID, name) == nil && g.CID > 2 {
			to.Guest = g
			return nil
		}
	}
	return fmt.Errorf("%q is not a guest; write cid:3, unix:NAME or none", text)
}

func setWindow(to *config.Function, text string) error {
	if text == "all" {
		to.DMAWindow = nil
		return nil
	}
	var w config.Window
	addr, size, ok := strings.Cut(text, "+")
	if !ok || w.Address.UnmarshalText([]byte(addr)) != nil || w.Size.UnmarshalText([]byte(size)) != nil {
		return fmt.Errorf("%q is not a window; write ADDRESS+SIZE, as 1G+256M, or all", text)
	}
	to.DMAWindow = &w
	return nil
}

var onOffValues = []string{"on", "off"}

func weightText(of *config.Function) string { return strconv.Itoa(int(max(of.Weight, 1))) }

func addressText(of *config.Function) string {
	if !of.Address.IsValid() {
		return "none"
	}
	return of.Address.String()
}

func guestText(of *config.Function) string {
	switch g := of.Guest; {
	case g == nil:
		return "none"
	case g.Unix != "":
		return "unix:" + g.Unix
	default:
		return fmt.Sprintf("cid:%d", g.CID)
	}
}

func windowText(of *config.Function) string {
	w := of.DMAWindow
	if w == nil {
		return "all"
	}
	return fmt.Sprintf("%s+%s", w.Address, w.Size)
}

// setCounts parses "req-pkt-tx=64,req-buf-tx=1024"; a number without a name sets all counters.
func setCounts(to *config.Credits, text string, least uint32) error {
	cost := to.Cost()
	for part := range strings.SplitSeq(text, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			value = name
		}
		var v uint32
		if err := number(&v, value); err != nil {
			return err
		}
		if v < least {
			return fmt.Errorf("%q: a limit of 0 would stop the function; write 1 or more, or disable it", part)
		}
		known := false
		for i := range cost {
			if !named || credit.Counter(i).String() == name {
				cost[i], known = v, true
			}
		}
		if !known {
			return fmt.Errorf("%q is not a counter; use one of %s", name, counterList())
		}
	}
	to.SetCost(cost)
	return nil
}

func counterList() string {
	var names []string
	for i := range credit.Counter(credit.NumCounters) {
		names = append(names, i.String())
	}
	return strings.Join(names, ", ")
}

// countText writes credits in the form that setCounts parses.
func countText(c *config.Credits) string {
	var parts []string
	for i, v := range c.Cost() {
		if v != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", credit.Counter(i), v))
		}
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ",")
}

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
		err = errors.New("unknown setting of a port; use type, name, mode, bridge, netns, mtu, mac, persist, assign, address, socket, listen or queues")
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
