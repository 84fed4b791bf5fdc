package controller

import (
	"log/slog"
	"slices"

	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// gidPause is the least time between two announcements of GIDs that drivers add or remove. It
// limits the cost for peers when a driver changes GIDs without end.
const gidPause vtime.Time = 50e6

// gids holds the GID changes that peers have not been told of.
type gids struct {
	changed bool
	next    vtime.Time // peers are not told before this time
	waiting []gidChange
}

// gidChange is a driver's command that completes when peers have been told. Admin queues bound the
// number of these.
type gidChange struct {
	function pfvf.ID
	then     func(error)
}

// due reports whether it is time to tell peers.
func (g *gids) due(now vtime.Time) bool { return g.changed && now >= g.next }

// deadline returns the time at which peers are to be told.
func (g *gids) deadline() vtime.Time {
	if !g.changed {
		return vtime.Never
	}
	return g.next
}

// told completes the commands that waited for peers to be told.
func (g *gids) told(now vtime.Time) {
	if !g.changed {
		return
	}
	g.changed, g.next = false, now+gidPause
	for _, c := range g.waiting {
		c.then(nil)
	}
	g.waiting = nil
}

// Announce implements the shard's part of AddGID and DelGID: it adds an address to a function,
// removes one, or both. then is called on the shard's thread. It is queued as a job like all
// changes of functions, so that Withdraw removes everything that was added before it.
func (l *Line) Announce(id pfvf.ID, add, drop [16]byte, then func(error)) {
	l.wish(func(k *Core, _ vtime.Time) {
		k.begin(func(now vtime.Time, done func()) {
			answer := func(err error) { l.tell(func(Side, vtime.Time) { then(err) }) }
			if err := k.setGID(id, add, drop); err != nil {
				k.cfg.Log(now, slog.LevelWarn, "a driver's GID is refused", "err", err)
				answer(err)
			} else {
				k.gids.changed = true
				k.gids.waiting = append(k.gids.waiting, gidChange{id, answer})
			}
			done()
		})
	})
}

func (k *Core) setGID(id pfvf.ID, add, drop [16]byte) error {
	if add == [16]byte{} {
		k.Functions.DelGID(id, drop)
		return nil
	}
	if host, taken := k.Manager.Offered(k.Functions.Settings(id).Tenant, add); taken {
		return functions.Refuse(abi.StatusAddressInUse, "%s: a function of host %d has that GID (%x)", id, host, add)
	}
	return k.Functions.AddGID(id, add, drop)
}

// Withdraw removes all GIDs that a function's driver added. It is called when the driver has gone.
func (l *Line) Withdraw(id pfvf.ID) {
	l.wish(func(k *Core, _ vtime.Time) {
		k.begin(func(_ vtime.Time, done func()) {
			if k.Functions.DelGIDs(id) {
				k.gids.changed = true
			}
			k.gids.waiting = slices.DeleteFunc(k.gids.waiting, func(c gidChange) bool { return c.function == id })
			done()
		})
	})
}
