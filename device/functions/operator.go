package functions

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/settings"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// ByOperator returns the edit for an operator's request to enable, disable or set a function.
// Errors are worded for operators.
func (r *Registry) ByOperator(id pfvf.ID, c *control.FunctionChange) (Edit, error) {
	switch c.Action {
	case "", "enable", "disable":
	default:
		return nil, fmt.Errorf("action %q: there are enable, disable and reset", c.Action)
	}
	if c.Action == "" && len(c.Set) == 0 {
		return nil, fmt.Errorf("function %s: nothing to change; there are %s", id, strings.Join(settings.Keys(), ", "))
	}
	return func(_, to *config.Function) error {
		for _, key := range slices.Sorted(maps.Keys(c.Set)) {
			if err := settings.Set(to, key, c.Set[key]); err != nil {
				return fmt.Errorf("%s: %s: %w", id, key, err)
			}
		}
		if c.Action == "enable" && to.Tenant == 0 {
			return fmt.Errorf("%s has no tenant yet; give it one with an address: vnic vf set %[1]s enable tenant 1 address 192.168.100.11", id)
		}
		config.NamedFunction{PF: id.PF(), VF: id.VF(), Function: to}.SetPortDefaults(r.cfg)
		if c.Action != "" {
			on := c.Action == "enable"
			to.Enabled = &on
		}
		return nil
	}, nil
}

// Recall applies an operator's settings from an earlier run. It is called before there are shards.
func (r *Registry) Recall(id pfvf.ID, c *control.FunctionChange) error {
	edit, err := r.ByOperator(id, c)
	if err != nil {
		return err
	}
	change, err := r.Change(id, edit)
	if err == nil {
		r.Commit(&change)
	}
	return err
}
