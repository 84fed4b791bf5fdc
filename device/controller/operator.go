package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// ChangeFunction carries out `vnic vf set`, enable, disable and reset.
func (a *API) ChangeFunction(_ context.Context, c control.FunctionChange) (v control.Function, err error) {
	id, err := a.ID(c.Function)
	if err != nil {
		return v, control.BadRequest{Err: err}
	}
	a.changes.Lock()
	defer a.changes.Unlock()
	core := a.c.Core
	var port *config.Port // as it was before the change
	err = core.ask(func(then func(error)) {
		port = core.Functions.Settings(id).Port
		core.Operate(id, &c, then)
	})
	var no *functions.Refusal
	switch {
	case errors.Is(err, inbox.ErrStopped):
		return v, err
	case errors.As(err, &no):
		return v, control.BadRequest{Err: errors.New(no.Why)}
	case err != nil:
		return v, control.BadRequest{Err: err}
	}
	failed := a.c.Fitter.Fit()[id]
	if failed != nil && c.Set["port"] != "" { // take back the port, keep the rest of the change
		_ = core.ask(func(then func(error)) {
			core.Change(id, func(_, to *config.Function) error { to.Port = port; return nil }, then)
		})
		a.c.Fitter.Fit()
		c.Set = maps.Clone(c.Set)
		delete(c.Set, "port")
	}
	var is config.Function
	stopped := errors.Join(
		core.Do(func(vtime.Time) { is = core.Functions.Settings(id) }),
		a.c.Shards.of(id).Ask(func(s View, _ vtime.Time) { v = s.Functions.Describe(id) }), // by now Fit has opened the function's port
	)
	if stopped == nil {
		if err := a.c.Settings.Note(id, &c, &is); err != nil {
			a.c.Log.Warn("changed settings of functions could not be saved and are lost when the NIC restarts", "err", err)
		}
	}
	if failed != nil {
		return v, control.BadRequest{Err: failed}
	}
	return v, stopped
}

// ChangePeer carries out `vnic peer add`, set and remove.
func (a *API) ChangePeer(ctx context.Context, c control.PeerChange) (list []control.Peer, err error) {
	a.changes.Lock()
	defer a.changes.Unlock()
	if c.Action == "add" {
		if err = a.c.Links.Open(); err != nil {
			return nil, control.BadRequest{Err: err}
		}
	}
	core := a.c.Core
	var is *config.Peer // after the change; nil: it is gone
	stopped := core.Do(func(now vtime.Time) {
		if err = core.Peers.operate(now, &c); err != nil {
			return
		}
		if p := core.Peers.Find(c.Name); p != nil {
			now := p.Is // the core changes its own
			is = &now
		}
	})
	switch {
	case stopped != nil:
		return nil, stopped
	case err != nil:
		return nil, control.BadRequest{Err: err}
	}
	if err := a.c.PeerMemory.Note(c.Name, is); err != nil {
		a.c.Log.Warn("changed settings of peers could not be saved and are lost when the NIC restarts", "err", err)
	}
	return a.Peers(ctx)
}

// InjectFault adds a fault rule or profile to a function, or removes them, and returns the faults
// that the function has then. Without a function it removes the faults of all.
func (a *API) InjectFault(_ context.Context, c control.FaultChange) (list []control.Fault, err error) {
	if c.Function == "" { // all functions
		return nil, a.c.Shards.Each(func(v View, now vtime.Time) { v.Faults.Clear(now) })
	}
	id, err := a.ID(c.Function)
	if err != nil {
		return nil, control.BadRequest{Err: err}
	}
	stopped := a.c.Shards.of(id).Ask(func(v View, now vtime.Time) {
		if err = v.Functions.Find(id); err == nil {
			list, err = v.Faults.Inject(now, id, &c)
		}
	})
	if stopped != nil {
		return nil, stopped
	}
	if err != nil {
		err = control.BadRequest{Err: err}
	}
	return list, err
}

// Faults lists the injected faults.
func (a *API) Faults(context.Context) (list []control.Fault, err error) {
	err = a.c.Shards.Each(func(v View, now vtime.Time) { list = append(list, v.Faults.List(now)...) })
	slices.SortStableFunc(list, func(a, b control.Fault) int { return strings.Compare(a.Function, b.Function) })
	return list, err
}

// InjectLink changes the impairments of the uplink.
func (a *API) InjectLink(_ context.Context, c control.LinkChange) (u control.Uplink, err error) {
	switch c.Direction {
	case "rx", "tx", "":
	default:
		return u, control.BadRequest{Err: fmt.Errorf("direction %q: write rx for what arrives, tx for what leaves, or nothing for both", c.Direction)}
	}
	first := true
	stopped := a.c.Shards.Each(func(v View, _ vtime.Time) {
		part := v.Uplink.Describe()
		if err == nil && c.Uplink != "" && c.Uplink != part.Name {
			err = control.BadRequest{Err: fmt.Errorf("unknown uplink %q; use %s", c.Uplink, part.Name)}
		}
		if err != nil {
			return
		}
		if err = v.Uplink.Impair(c.Direction, func(asked config.Impairment) (config.Impairment, error) { return changed(asked, c) }); err != nil {
			return
		}
		if part = v.Uplink.Describe(); first {
			u, first = part, false
			return
		}
		addUplink(&u, part)
	})
	return u, errors.Join(stopped, err)
}

// changed returns the impairment of one direction after the change c.
func changed(asked config.Impairment, c control.LinkChange) (config.Impairment, error) {
	if c.Clear {
		asked = config.NoImpairment()
	}
	i := DescribeImpairment(asked)
	if len(c.Set) > 0 {
		dec := json.NewDecoder(bytes.NewReader(c.Set))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&i); err != nil {
			return asked, control.BadRequest{Err: fmt.Errorf("set: %w; give fields of an impairment as GET /v1/nic shows them", err)}
		}
	}
	asked = config.Impairment{
		Loss: config.Share(i.Loss), Duplicate: config.Share(i.Duplicate), Reorder: config.Share(i.Reorder), Corrupt: config.Share(i.Corrupt), Mark: config.Share(i.Mark),
		Delay: time.Duration(i.DelayNS), Jitter: time.Duration(i.JitterNS), ReorderDelay: time.Duration(i.ReorderDelayNS),
		Rate: config.Rate(i.Rate), Queue: i.Queue, Down: i.Down, Seed: i.Seed,
	}
	if err := asked.Check(); err != nil {
		return asked, control.BadRequest{Err: err}
	}
	return asked, nil
}

// DescribeImpairment converts a configured impairment to the form that operators see.
func DescribeImpairment(c config.Impairment) control.Impairment {
	return control.Impairment{
		Loss: float64(c.Loss), Duplicate: float64(c.Duplicate), Reorder: float64(c.Reorder), Corrupt: float64(c.Corrupt), Mark: float64(c.Mark),
		DelayNS: int64(c.Delay), JitterNS: int64(c.Jitter), ReorderDelayNS: int64(c.ReorderDelay), Rate: int64(c.Rate), Queue: c.Queue, Down: c.Down, Seed: c.Seed,
	}
}
