package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// anyPort selects the ports of all functions.
const anyPort = "any"

// Capture writes a capture of the traffic to w until ctx ends. It implements control.Provider.
func (a *API) Capture(ctx context.Context, mode string, ports []string, w io.Writer) error {
	switch mode {
	case config.CaptureSealed, config.CaptureClear, config.CaptureBoth:
	case "":
		if len(ports) == 0 {
			return control.BadRequest{Err: errors.New("nothing to capture: name a mode or a port")}
		}
	default:
		return control.BadRequest{Err: fmt.Errorf("mode %q: write sealed, clear or both", mode)}
	}
	wanted, err := a.portsNamed(ports)
	if err != nil {
		return err
	}
	c, described := capture.NewSink(nil, mode), make([]capture.Port, len(wanted))
	c.AnyPort, c.Ports = slices.Contains(ports, anyPort), map[capture.Port]int{}
	for i, p := range wanted {
		described[i], c.Ports[p.Port] = p.Port, capture.Clear+1+i
	}
	if c.To, err = capture.New(w, described...); err != nil {
		return err
	}
	if err := a.startCapture(&c); err != nil {
		return errors.Join(err, c.To.Close())
	}
	select {
	case <-ctx.Done():
	case <-c.To.Failed(): // the reader went away
	}
	a.EndCapture(c.To)
	return c.To.Close()
}

// startCapture starts a capture on every shard. If one fails, it ends the capture on all.
func (a *API) startCapture(c *capture.Sink) (err error) {
	stopped := a.c.Shards.Each(func(v View, _ vtime.Time) {
		if err == nil {
			err = v.StartCapture(c, a.c.WallOffset())
		}
	})
	if stopped == nil && err == nil {
		return nil
	}
	a.EndCapture(c.To)
	if err != nil {
		err = control.BadRequest{Err: err}
	}
	return errors.Join(stopped, err)
}

// EndCapture ends a capture on every shard.
func (a *API) EndCapture(c *capture.Capture) {
	_ = a.c.Shards.Each(func(v View, _ vtime.Time) { v.EndCapture(c) }) // an error means that the shards have ended: nothing to do
}

// portsNamed finds ports by the names of their devices or functions.
func (a *API) portsNamed(names []string) (found []capture.NamedPort, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	var all []capture.NamedPort
	if err := a.c.Shards.Each(func(v View, _ vtime.Time) { all = append(all, v.Ports()...) }); err != nil {
		return nil, err
	}
	if slices.Contains(names, anyPort) {
		return all, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(p capture.NamedPort) bool { return name == p.Name || slices.Contains(p.Names, name) })
		if i < 0 {
			known := []string{anyPort}
			for _, p := range all {
				known = append(known, p.Name)
			}
			if len(all) == 0 {
				return nil, control.BadRequest{Err: fmt.Errorf("port %q: no function of this NIC has a port", name)}
			}
			return nil, control.BadRequest{Err: fmt.Errorf("port %q: there is none; there are %s", name, strings.Join(known, ", "))}
		}
		if !slices.ContainsFunc(found, func(p capture.NamedPort) bool { return p.Port == all[i].Port }) {
			found = append(found, all[i])
		}
	}
	return found, nil
}
