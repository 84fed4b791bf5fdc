package device

import (
	"context"
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
		if err := n.settings.Note(id, &c, &is); err != nil {
			n.log.Warn("what was set of functions is lost when the NIC starts again", "err", err)
		}
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
			return fmt.Errorf("function %s: nothing to change; there are %s", id, strings.Join(settings.Keys(), ", "))
		}
		return s.change(now, id, func(to *config.Function) error {
			for _, key := range slices.Sorted(maps.Keys(c.Set)) {
				if err := settings.Set(to, key, c.Set[key]); err != nil {
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
		f.TakeVFsDown(now)
		f.TakeDown(now, "the operator reset it")
		return nil
	}
	return fmt.Errorf("action %q: there are enable, disable and reset", c.Action)
}
