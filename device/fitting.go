package device

import (
	"errors"
	"fmt"

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

// fitting is what a function has outside the shard.
type fitting struct {
	id  pfvf.ID
	cid uint32 // of its guest
}

// fit gives functions what they were enabled for and the shard cannot make
// itself, since it does no I/O: windows. It is called after each change, by
// whoever made it or by fitAlways.
func (n *NIC) fit() error {
	n.fitting.Lock()
	defer n.fitting.Unlock()
	var want []fitting
	err := n.shard.do(func(falcon.Time) {
		for _, f := range n.shard.funcs.all {
			if g := f.cfg.Guest; g != nil && g.CID != 0 && *f.cfg.Enabled {
				want = append(want, fitting{f.ID, g.CID})
			}
		}
	})
	for _, w := range want {
		for _, a := range n.deps.Attachments {
			if x, ok := a.Attachment.(Windower); ok {
				if e := x.GiveWindow(w.id, w.cid); e != nil {
					err = errors.Join(err, fmt.Errorf("window of %s: %w", w.id, e))
				}
			}
		}
	}
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
		if err := n.fit(); err != nil && !errors.Is(err, errStopped) {
			n.guestLog("function enabled, but not all of it", "err", err)
		}
	}
}
