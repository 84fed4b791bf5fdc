package settings

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
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
