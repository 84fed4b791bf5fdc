package shard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Change implements controller.View.
func (v View) Change(now falcon.Time, id pfvf.ID, c *control.FunctionChange) error {
	err := v.s.funcs.operate(now, id, c)
	var no *refusal
	if errors.As(err, &no) {
		return errors.New(no.why)
	}
	return err
}

// SetPort implements controller.View.
func (v View) SetPort(now falcon.Time, id pfvf.ID, p *config.Port) {
	_ = v.s.funcs.change(now, id, func(to *config.Function) error { to.Port = p; return nil })
}

func (fs *functionSet) operate(now falcon.Time, id pfvf.ID, c *control.FunctionChange) error {
	switch c.Action {
	case "", "enable", "disable":
		if c.Action == "" && len(c.Set) == 0 {
			return fmt.Errorf("function %s: nothing to change; there are %s", id, strings.Join(settings.Keys(), ", "))
		}
		return fs.change(now, id, func(to *config.Function) error {
			for _, key := range slices.Sorted(maps.Keys(c.Set)) {
				if err := settings.Set(to, key, c.Set[key]); err != nil {
					return fmt.Errorf("%s: %s: %w", id, key, err)
				}
			}
			config.NamedFunction{PF: id.PF(), VF: id.VF(), Function: to}.SetPortDefaults(fs.shard.cfg)
			if c.Action != "" {
				on := c.Action == "enable"
				to.Enabled = &on
			}
			return nil
		})
	case "reset":
		f := fs.byID[id]
		switch {
		case f == nil && !fs.possible(id):
			return fmt.Errorf("function %s: there is none; %s", id, fs.inReach(id))
		case f == nil || f.Lifecycle.State() == abi.StateDisabled:
			return fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
		}
		f.TakeVFsDown(now)
		f.TakeDown(now, "the operator reset it")
		return nil
	}
	return fmt.Errorf("action %q: there are enable, disable and reset", c.Action)
}
