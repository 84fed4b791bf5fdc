package device

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

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

// fitter gives functions what they are set to have and a shard cannot make itself, since it does no
// I/O: windows and ports. It implements controller.Fitter.
type fitter struct {
	mu       sync.Mutex
	units    units
	deps     *Deps
	clock    func() int64
	log      *slog.Logger
	guestLog func(msg string, args ...any)

	windowless map[pfvf.ID]uint32 // functions that may lack their window, with their guests' context ids
}

// Fit gives functions what they are set to have. It is called after each change, by
// whoever made it or by always, and tells what could not be had for whom.
func (f *fitter) Fit() map[pfvf.ID]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := failures{}
	if err := errors.Join(f.fitWindows(m), f.fitPorts(m, func(u *unit, own func(falcon.Time)) error { return u.Do(own) })); err != nil && !errors.Is(err, inbox.ErrStopped) {
		f.guestLog("functions changed, but not all outside them", "err", err)
	}
	return m
}

// failures are the reasons why functions do not have what they are set to have.
type failures map[pfvf.ID]error

func (m failures) add(id pfvf.ID, what string, err error) {
	if err != nil {
		m[id] = errors.Join(m[id], fmt.Errorf("%s of %s: %w", what, id, err))
	}
}

// fitWindows gives windows to the functions that were set since it was called last, and to those
// that could not have theirs: a change of one function costs the same however many there are.
func (f *fitter) fitWindows(m failures) (err error) {
	for _, u := range f.units {
		var guests map[pfvf.ID]uint32
		if e := u.Do(func(falcon.Time) { guests = u.View().NewGuests() }); e != nil {
			err = errors.Join(err, e)
			continue
		}
		maps.Copy(f.windowless, guests)
	}
	for _, id := range slices.Sorted(maps.Keys(f.windowless)) {
		no := f.giveWindow(id, f.windowless[id])
		if no == nil {
			delete(f.windowless, id)
		}
		m.add(id, "window", no)
	}
	return err
}

// giveWindow has whoever can give a function of a guest a window; cid 0: it is no guest's.
func (f *fitter) giveWindow(id pfvf.ID, cid uint32) (err error) {
	for _, a := range f.deps.Attachments {
		if x, ok := a.Attachment.(Windower); ok && cid != 0 {
			err = errors.Join(err, x.GiveWindow(id, cid))
		}
	}
	return err
}

// fitPorts makes the ports' devices follow what functions are set to have. do calls what is a
// shard's to do.
func (f *fitter) fitPorts(m failures, do func(*unit, func(falcon.Time)) error) (err error) {
	for _, u := range f.units {
		own := func(of func(falcon.Time)) error { return do(u, of) }
		err = errors.Join(err, u.ports.Fit(f.deps.sources(), own, func(id pfvf.ID, e error) { m.add(id, "port", e) }))
	}
	return err
}

// always fits the functions of a shard that PFs change by themselves, until stop is closed.
func (f *fitter) always(u *unit, stop <-chan struct{}) {
	for {
		select {
		case <-u.Changed():
		case <-stop:
			return
		}
		for _, err := range f.Fit() {
			f.guestLog("function is not as it is set", "err", err)
		}
	}
}

// recall makes the devices of ports that were set. Unlike one of the
// configuration, one that cannot be made does not keep the NIC from starting.
func (f *fitter) recall() {
	m := failures{}
	_ = f.fitPorts(m, func(_ *unit, own func(falcon.Time)) error { own(f.clock()); return nil })
	for id, err := range m {
		f.log.Warn("port not made again", "function", id.String(), "err", err)
	}
}
