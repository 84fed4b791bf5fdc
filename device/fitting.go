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

// Windower is an attachment that can give windows to the functions of its guests while the NIC
// runs.
type Windower interface {
	// GiveWindow gives a window to the function of the guest with this CID. It does nothing if the
	// guest is not this attachment's, the function has one already, or the guest has no windows at
	// all.
	GiveWindow(function pfvf.ID, cid uint32) error
}

// fitter gives functions the parts of their settings that a shard cannot make itself, since it does
// no I/O: windows and ports. It implements controller.Fitter.
type fitter struct {
	mu       sync.Mutex
	units    units
	deps     *Deps
	clock    func() int64
	log      *slog.Logger
	guestLog func(msg string, args ...any)

	windowless map[pfvf.ID]uint32 // functions that may lack their window, with their guests' CIDs
}

// Fit makes the windows and ports that settings ask for. It is called after each change, by
// whoever made it or by always. It returns, for each function that did not get its part, the
// error.
func (f *fitter) Fit() map[pfvf.ID]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := failures{}
	if err := errors.Join(f.fitWindows(m), f.fitPorts(m, func(u *unit, own func(falcon.Time)) error { return u.Do(own) })); err != nil && !errors.Is(err, inbox.ErrStopped) {
		f.guestLog("functions changed, but not all outside them", "err", err)
	}
	return m
}

// failures holds, by function, why it lacks something that its settings ask for.
type failures map[pfvf.ID]error

func (m failures) add(id pfvf.ID, what string, err error) {
	if err != nil {
		m[id] = errors.Join(m[id], fmt.Errorf("%s of %s: %w", what, id, err))
	}
}

// fitWindows gives windows to the functions that were changed since the last call, and to those
// that could not get theirs: the cost of a change does not depend on the number of functions.
func (f *fitter) fitWindows(m failures) (err error) {
	for _, u := range f.units {
		var guests map[pfvf.ID]uint32
		if e := u.Do(func(falcon.Time) { guests = u.View().Functions.NewGuests() }); e != nil {
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

// giveWindow asks the attachments for a window for a function of a guest; CID 0: it has no guest.
func (f *fitter) giveWindow(id pfvf.ID, cid uint32) (err error) {
	for _, a := range f.deps.Attachments {
		if x, ok := a.Attachment.(Windower); ok && cid != 0 {
			err = errors.Join(err, x.GiveWindow(id, cid))
		}
	}
	return err
}

// fitPorts updates the ports' devices to the settings. do runs a function for a shard, on its
// thread if that runs.
func (f *fitter) fitPorts(m failures, do func(*unit, func(falcon.Time)) error) (err error) {
	for _, u := range f.units {
		own := func(of func(falcon.Time)) error { return do(u, of) }
		err = errors.Join(err, u.ports.Fit(f.deps.sources(), own, func(id pfvf.ID, e error) { m.add(id, "port", e) }))
	}
	return err
}

// always calls Fit when functions of a shard change, also by their PFs, until stop is closed.
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

// recall creates the devices of ports that were set in the earlier run. If one fails, the NIC
// starts without it, unlike with a port of the configuration.
func (f *fitter) recall() {
	m := failures{}
	_ = f.fitPorts(m, func(_ *unit, own func(falcon.Time)) error { own(f.clock()); return nil })
	for id, err := range m {
		f.log.Warn("port not made again", "function", id.String(), "err", err)
	}
}
