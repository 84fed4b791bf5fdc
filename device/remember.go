package device

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Settings keeps what operators set of functions for the NIC that runs after
// this one. What drivers of PFs set is theirs to set again.
type Settings interface {
	Load() ([]byte, error) // nil: nothing was set
	Store(b []byte) error
}

// remembered is what operators set, function by function.
type remembered struct {
	mu      sync.Mutex
	changes map[pfvf.ID]control.FunctionChange
}

// remember notes a change that came into force.
func (n *NIC) remember(id pfvf.ID, c *control.FunctionChange, is config.Function) {
	if n.deps.Settings == nil || c.Action == "reset" {
		return
	}
	r := &n.remembered
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.changes[id]
	all.Function = id.String()
	if c.Action != "" {
		all.Action = c.Action
	}
	all.Set = maps.Clone(all.Set)
	if all.Set == nil {
		all.Set = map[string]string{}
	}
	for key, text := range c.Set {
		if n, ok := otherNames[key]; ok {
			key = n
		}
		switch key { // these say what is to be different; what counts is how it is then
		case "port":
			text = portText(is.Port)
		case "credits":
			text = countText(&is.Credits)
		case "guarantee":
			text = countText(&is.Guarantee)
		}
		all.Set[key] = text
	}
	if r.changes == nil {
		r.changes = map[pfvf.ID]control.FunctionChange{}
	}
	r.changes[id] = all
	b, err := json.Marshal(r.changes)
	if err == nil {
		err = n.deps.Settings.Store(b)
	}
	if err != nil {
		n.log.Warn("what was set of functions is lost when the NIC starts again", "err", err)
	}
}

// recall sets functions as they were set in the NIC before. It is called before
// the shard runs. What does not fit the configuration any more is left out.
func (n *NIC) recall() error {
	if n.deps.Settings == nil {
		return nil
	}
	b, err := n.deps.Settings.Load()
	if err != nil || b == nil {
		return err
	}
	if err := json.Unmarshal(b, &n.remembered.changes); err != nil {
		return fmt.Errorf("settings of functions: %w", err)
	}
	left := slices.Sorted(maps.Keys(n.remembered.changes))
	for progress := true; progress; { // one may need what another gives up
		progress = false
		left = slices.DeleteFunc(left, func(id pfvf.ID) bool {
			c := n.remembered.changes[id]
			ok := n.shard.operate(n.clock(), id, &c) == nil
			progress = progress || ok
			return ok
		})
	}
	for _, id := range left {
		c := n.remembered.changes[id]
		n.log.Warn("function not set again as it was", "function", id.String(), "err", n.shard.operate(n.clock(), id, &c))
		delete(n.remembered.changes, id)
	}
	return nil
}

// recallPorts makes the devices of ports that were set. Unlike one of the
// configuration, one that cannot be made does not keep the NIC from starting.
func (n *NIC) recallPorts() {
	m := misfits{}
	_ = n.fitPorts(m, func(f func(falcon.Time)) error { f(n.clock()); return nil })
	for id, err := range m {
		n.log.Warn("port not made again", "function", id.String(), "err", err)
	}
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

func onOffText(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// countText is numbers of credits as setCounts reads them.
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
