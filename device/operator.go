package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ChangeFunction is `vnic vf set`, enable, disable and reset. It implements
// control.Provider.
func (n *NIC) ChangeFunction(_ context.Context, c control.FunctionChange) (v control.Function, err error) {
	id, err := n.functionID(c.Function)
	if err != nil {
		return v, control.BadRequest{Err: err}
	}
	var port *config.Port // as it was
	stopped := n.shard.do(func(now falcon.Time) {
		port = n.shard.funcs.settings(id).Port
		if err = n.shard.operate(now, id, &c); err == nil {
			v = n.shard.describe(id)
		}
	})
	var no *refusal
	switch {
	case stopped != nil:
		return v, stopped
	case errors.As(err, &no):
		return v, control.BadRequest{Err: errors.New(no.why)}
	case err != nil:
		return v, control.BadRequest{Err: err}
	}
	if err = n.fit()[id]; err != nil && c.Set["port"] != "" { // the rest stays
		_ = n.shard.do(func(now falcon.Time) {
			_ = n.shard.change(now, id, func(to *config.Function) error { to.Port = port; return nil })
		})
		n.fit()
		c.Set = maps.Clone(c.Set)
		delete(c.Set, "port")
	}
	var is config.Function
	stopped = n.shard.do(func(falcon.Time) { // its port is up by now
		v, is = n.shard.describe(id), n.shard.funcs.settings(id)
	})
	if stopped == nil {
		n.remember(id, &c, is)
	}
	if err != nil {
		return v, control.BadRequest{Err: err}
	}
	return v, stopped
}

// functionID reads a function's name, with or without the host.
func (n *NIC) functionID(name string) (pfvf.ID, error) {
	if strings.HasPrefix(name, "pf") {
		name = fmt.Sprintf("h%d.%s", n.cfg.NIC.Host, name)
	}
	return pfvf.ParseID(name)
}

func (s *Shard) operate(now falcon.Time, id pfvf.ID, c *control.FunctionChange) error {
	switch c.Action {
	case "", "enable", "disable":
		if c.Action == "" && len(c.Set) == 0 {
			return fmt.Errorf("function %s: nothing to change; there are %s", id, strings.Join(FunctionSettings(), ", "))
		}
		return s.change(now, id, func(to *config.Function) error {
			for _, key := range slices.Sorted(maps.Keys(c.Set)) {
				if err := set(to, key, c.Set[key]); err != nil {
					return fmt.Errorf("%s: %s: %w", id, key, err)
				}
			}
			config.NamedFunction{PF: id.PF(), VF: id.VF(), Function: to}.SetPortDefaults(s.cfg)
			if c.Action != "" {
				on := c.Action == "enable"
				to.Enabled = &on
			}
			return nil
		})
	case "reset":
		f := s.funcs.byID[id]
		switch {
		case f == nil && !s.funcs.possible(id):
			return fmt.Errorf("function %s: there is none; %s", id, s.funcs.inReach(id))
		case f == nil || f.Lifecycle.State() == abi.StateDisabled:
			return fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
		}
		f.takeVFsDown(now)
		f.takeDown(now, "the operator reset it")
		return nil
	}
	return fmt.Errorf("action %q: there are enable, disable and reset", c.Action)
}

// settings are what an operator can set of a function, by name; where `ip link
// set … vf` has another word for it, that is known too.
var settings = map[string]func(to *config.Function, text string) error{
	"mac":         func(to *config.Function, text string) error { return to.MAC.UnmarshalText([]byte(text)) },
	"tenant":      func(to *config.Function, text string) error { return number(&to.Tenant, text) },
	"address":     setAddress,
	"guest":       setGuest,
	"max_tx_rate": func(to *config.Function, text string) error { return number(&to.MaxTxRate, text) },
	"weight":      setWeight,
	"trust":       func(to *config.Function, text string) error { return onOff(&to.Trust, text) },
	"spoofchk":    setSpoofCheck,
	"state":       func(to *config.Function, text string) error { return to.Link.UnmarshalText([]byte(text)) },
	"max_qp":      func(to *config.Function, text string) error { return quota(&to.Limits.QP, text) },
	"max_cq":      func(to *config.Function, text string) error { return quota(&to.Limits.CQ, text) },
	"max_mr":      func(to *config.Function, text string) error { return quota(&to.Limits.MR, text) },
	"max_pd":      func(to *config.Function, text string) error { return quota(&to.Limits.PD, text) },
	"max_ah":      func(to *config.Function, text string) error { return quota(&to.Limits.AH, text) },
	"max_srq":     func(to *config.Function, text string) error { return quota(&to.Limits.SRQ, text) },
	"max_mw":      func(to *config.Function, text string) error { return quota(&to.Limits.MW, text) },
	"max_xrcd":    func(to *config.Function, text string) error { return quota(&to.Limits.XRCD, text) },
	"qp_entries":  func(to *config.Function, text string) error { return quota(&to.Limits.QPEntries, text) },
	"cq_entries":  func(to *config.Function, text string) error { return quota(&to.Limits.CQEntries, text) },
	"dma_window":  setWindow,
	"credits":     func(to *config.Function, text string) error { return setCounts(&to.Credits, text, 1) },
	"port":        func(to *config.Function, text string) error { return setPort(to, text) },
	"guarantee":   func(to *config.Function, text string) error { return setCounts(&to.Guarantee, text, 0) },
}

var otherNames = map[string]string{"rate": "max_tx_rate", "spoofcheck": "spoofchk", "link": "state", "addr": "address"}

// elsewhere is what `ip link set … vf` knows and this NIC does another way.
var elsewhere = map[string]string{
	"vlan":        "VFs are kept apart by tenant, not by VLAN; set tenant",
	"min_tx_rate": "what is sure for a function is counted in credits; set guarantee, as guarantee req-pkt-tx=64",
	"query_rss":   "there is no RSS to query",
	"node_guid":   "the GUID is made of the MAC; set mac",
	"port_guid":   "the GUID is made of the MAC; set mac",
}

// FunctionSettings names what can be set of a function while the NIC runs.
func FunctionSettings() []string { return slices.Sorted(maps.Keys(settings)) }

func set(to *config.Function, key, text string) error {
	if n, ok := otherNames[key]; ok {
		key = n
	}
	if f := settings[key]; f != nil {
		return f(to, text)
	}
	if why, ok := elsewhere[key]; ok {
		return errors.New(why)
	}
	return fmt.Errorf("not known; there are %s", strings.Join(FunctionSettings(), ", "))
}

func number[T uint32 | uint64](to *T, text string) error {
	v, err := strconv.ParseUint(text, 0, 64)
	if err != nil || uint64(T(v)) != v {
		return fmt.Errorf("%q is not a whole number in range; write one", text)
	}
	*to = T(v)
	return nil
}

func quota(to *uint32, text string) error {
	if err := number(to, text); err != nil {
		return err
	}
	if *to == 0 {
		return fmt.Errorf("0 would leave the function without; write 1 or more, or disable it")
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

// setCounts reads "req-pkt-tx=64,req-buf-tx=1024"; a bare number is for all.
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
			return fmt.Errorf("%q is not a counter; there are %s", name, counterList())
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
