package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"

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
	if err := errors.Join(n.fitWindows(m), n.fitPorts(m, func(u *unit, f func(falcon.Time)) error { return u.Do(f) })); err != nil && !errors.Is(err, inbox.ErrStopped) {
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
	var err error
	for _, u := range n.units {
		err = errors.Join(err, u.Do(func(falcon.Time) { maps.Copy(guests, u.View().GuestCIDs()) }))
	}
	for _, id := range slices.Sorted(maps.Keys(guests)) {
		for _, a := range n.deps.Attachments {
			if x, ok := a.Attachment.(Windower); ok {
				m.add(id, "window", x.GiveWindow(id, guests[id]))
			}
		}
	}
	return err
}

// fitPorts makes the ports' devices follow what functions are set to have. do calls what is a
// shard's to do.
func (n *NIC) fitPorts(m misfits, do func(*unit, func(falcon.Time)) error) (err error) {
	for _, u := range n.units {
		own := func(f func(falcon.Time)) error { return do(u, f) }
		err = errors.Join(err, u.ports.Fit(n.sources(), own, func(id pfvf.ID, e error) { m.add(id, "port", e) }))
	}
	return err
}

// fitAlways fits the functions of a shard that PFs change by themselves, until stop is closed.
func (n *NIC) fitAlways(u *unit, stop <-chan struct{}) {
	for {
		select {
		case <-u.Changed():
		case <-stop:
			return
		}
		for _, err := range n.Fit() {
			n.guestLog("function is not as it is set", "err", err)
		}
	}
}
