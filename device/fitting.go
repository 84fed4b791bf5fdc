package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Windower is an attachment that can give the functions of its guest windows
// while the NIC runs.
type Windower interface {
	// GiveWindow gives the function of the guest with a context id a window,
	// unless it is another's guest, has one, or the guest has none at all.
	GiveWindow(function pfvf.ID, cid uint32) error
}

// Fit gives functions what they are set to have and the shard cannot make itself,
// since it does no I/O: windows and ports. It is called after each change, by
// whoever made it or by fitAlways, and tells what could not be had for whom.
func (n *NIC) Fit() map[pfvf.ID]error {
	n.fitting.Lock()
	defer n.fitting.Unlock()
	m := misfits{}
	if err := errors.Join(n.fitWindows(m), n.fitPorts(m, n.shard.do)); err != nil && !errors.Is(err, inbox.ErrStopped) {
		n.guestLog("functions changed, but not all outside them", "err", err)
	}
	return m
}

// misfits are the reasons why functions do not have what they are set to have.
type misfits map[pfvf.ID]error

func (m misfits) add(id pfvf.ID, what string, err error) {
	if err != nil {
		m[id] = errors.Join(m[id], fmt.Errorf("%s of %s: %w", what, id, err))
	}
}

func (n *NIC) fitWindows(m misfits) error {
	guests := map[pfvf.ID]uint32{}
	err := n.shard.do(func(falcon.Time) {
		for _, f := range n.shard.funcs.all {
			if g := f.cfg.Guest; g != nil && g.CID != 0 && *f.cfg.Enabled {
				guests[f.ID] = g.CID
			}
		}
	})
	for _, id := range slices.Sorted(maps.Keys(guests)) {
		for _, a := range n.deps.Attachments {
			if x, ok := a.Attachment.(Windower); ok {
				m.add(id, "window", x.GiveWindow(id, guests[id]))
			}
		}
	}
	return err
}

// fitPorts closes the devices of ports that functions are not set to have any
// more and opens those they have now. Devices come and go outside the shard:
// the kernel takes its time. do calls what is the shard's to do.
func (n *NIC) fitPorts(m misfits, do func(func(falcon.Time)) error) error {
	var gone []device
	var come []*functionPort
	err := do(func(falcon.Time) { gone, come = n.changedPorts() })
	for _, dev := range gone {
		if e := dev.Remove(); e != nil {
			err = errors.Join(err, e)
		}
	}
	for _, p := range come {
		dev, e := openPort(p.cfg, n.deps.TAPs)
		if e == nil {
			stopped := do(func(now falcon.Time) { e = n.addPort(now, p, dev) })
			if e = errors.Join(stopped, e); e != nil {
				e = errors.Join(e, dev.Remove())
			}
		}
		m.add(p.id, "port", e)
	}
	return err
}

// changedPorts takes out the ports that are not as functions are set to have them,
// and returns their devices and the ports that are missing.
func (n *NIC) changedPorts() (gone []device, come []*functionPort) {
	s := n.shard
	wanted := map[pfvf.ID]*config.Port{}
	for _, f := range s.funcs.all {
		wanted[f.ID] = f.cfg.Port
	}
	for id, c := range s.funcs.shelf {
		wanted[id] = c.Port
	}
	before := len(s.plain.ports)
	s.plain.gw.Update(func() {
		s.plain.ports = slices.DeleteFunc(slices.Clone(s.plain.ports), func(p *functionPort) bool {
			if !p.Lost && p.Port != nil && reflect.DeepEqual(p.cfg, wanted[p.id]) {
				delete(wanted, p.id)
				return false
			}
			if dev := n.ports.remove(p); dev != nil {
				gone = append(gone, dev)
			}
			s.plain.gw.RemoveEndpoint(p.Endpoint)
			return true
		})
	})
	for id, c := range wanted {
		if c != nil {
			come = append(come, &functionPort{id: id, cfg: c})
		}
	}
	if len(s.plain.ports) != before {
		_ = s.announce() // fewer than before
	}
	slices.SortFunc(come, func(a, b *functionPort) int { return cmp.Compare(a.id, b.id) })
	return gone, come
}

// addPort gives the NIC a port with its device. When it fails the device is not
// the NIC's.
func (n *NIC) addPort(now falcon.Time, p *functionPort, dev device) (err error) {
	s := n.shard
	s.plain.join(p)
	if err = n.ports.add(p, dev); err == nil {
		s.plain.ports = append(slices.Clone(s.plain.ports), p)
		if err = s.announce(); err == nil {
			s.cm.Run(now)
			return nil
		}
		s.plain.ports = s.plain.ports[:len(s.plain.ports)-1]
	}
	n.ports.remove(p)
	s.plain.gw.RemoveEndpoint(p.Endpoint)
	return err
}

// fitAlways fits the functions that PFs change by themselves, until stop is
// closed.
func (n *NIC) fitAlways(stop <-chan struct{}) {
	for {
		select {
		case <-n.shard.changed:
		case <-stop:
			return
		}
		for _, err := range n.Fit() {
			n.guestLog("function is not as it is set", "err", err)
		}
	}
}
