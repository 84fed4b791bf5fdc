package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// All work on the settings of functions goes through the core, one job after the other. A change is
// computed here, applied by the shard that owns the function, and then announced.
//
//	PF, operator ─▶ Change ─▶ Registry.Change ─▶ Orders.Set ─▶ Registry.Commit ─▶ peers are told
//	driver       ─▶ Announce, Withdraw
//	PF           ─▶ Visit  ─▶ Orders.VF, of the shard that has the VF

// jobs holds the jobs that wait for their turn. The number of jobs is bounded by the PFs' admin
// queues, and by operators, each of whom waits for an answer.
type jobs struct {
	waiting []job
	busy    bool // the first job has started and waits for its shard
}

// job starts one piece of work. It calls done when the work is complete, at once or later.
type job func(now vtime.Time, done func())

// begin queues a job. It runs after the jobs queued before it.
func (k *Core) begin(j job) { k.jobs.waiting = append(k.jobs.waiting, j) }

// runJobs starts jobs until one has to wait for its shard.
func (k *Core) runJobs(now vtime.Time) {
	j := &k.jobs
	n := 0
	for ; n < len(j.waiting) && !j.busy; n++ {
		j.busy = true
		j.waiting[n](now, func() { j.busy = false })
		j.waiting[n] = nil
	}
	if j.waiting = j.waiting[n:]; len(j.waiting) == 0 {
		j.waiting = nil
	}
}

// onShard runs f on the thread of the shard that owns a function, and then after on the core's
// goroutine.
func (k *Core) onShard(id pfvf.ID, f func(to Orders, now vtime.Time), after func(now vtime.Time)) {
	l := k.shards[k.cfg.ShardOf(uint32(id))]
	l.tell(func(to Orders, now vtime.Time) {
		f(to, now)
		l.post(func(_ *Core, now vtime.Time) { after(now) })
	})
}

// Change changes the settings of a function: completely, or not at all. It calls then with the
// error, or nil.
func (k *Core) Change(id pfvf.ID, edit functions.Edit, then func(error)) {
	k.begin(func(_ vtime.Time, done func()) {
		c, err := k.Functions.Change(id, edit)
		if err != nil {
			then(err)
			done()
			return
		}
		k.onShard(id, func(to Orders, now vtime.Time) { err = to.Set(now, id, &c.Is) }, func(vtime.Time) {
			if err == nil {
				k.changed(&c)
			}
			then(err)
			done()
		})
	})
}

// changed commits a change and tells the shards and peers that need to know.
func (k *Core) changed(c *functions.Change) {
	k.Functions.Commit(c)
	k.untold = true
	if pf := c.ID.Parent(); *c.Was.Enabled != *c.Is.Enabled && c.ID.IsVF() {
		n := k.Functions.Enabled(pf.PF())
		k.shards[k.cfg.ShardOf(uint32(pf))].tell(func(to Orders, _ vtime.Time) { to.VFsEnabled(pf, n) })
	}
	if link := c.Is.Link; !c.ID.IsVF() && link != c.Was.Link {
		k.all(func(to Orders, now vtime.Time) { to.PFLink(now, c.ID, link) })
	}
}

// announce tells peers the functions and ports of this NIC, if they have changed.
func (k *Core) announce(now vtime.Time) {
	var err error
	if k.untold || k.gids.due(now) {
		if k.untold {
			k.Manager.CM.Hold(k.held())
		}
		k.untold = false
		err = k.Manager.CM.SetEndpoints(k.endpoints())
		if k.cfg.Announced != nil {
			k.cfg.Announced()
		}
		k.gids.told(now)
	}
	if k.plain.untold {
		k.plain.untold = false
		err = errors.Join(err, k.Manager.CM.SetPorts(k.plain.addresses()))
	}
	if err != nil {
		k.cfg.Log(now, slog.LevelError, "functions or ports not announced to peers", "err", err)
	}
}

// endpoints lists the functions that peers may reach, one entry per address.
func (k *Core) endpoints() (list []cm.Endpoint) {
	k.Functions.Each(func(id pfvf.ID, is *config.Function) {
		if *is.Enabled {
			f := pfvf.Function{Tenant: is.Tenant, Addr: is.Address}
			e := cm.Endpoint{Tenant: is.Tenant, GID: f.GID(), Function: uint32(id), Shard: uint8(k.cfg.ShardOf(uint32(id)))}
			list = append(list, e)
			k.Functions.GIDs(id, func(tenant uint32, gid [16]byte) {
				e.Tenant, e.GID = tenant, gid
				list = append(list, e)
			})
		}
	})
	return list
}

// held lists the addresses that no peer may claim: those in the settings of this NIC's functions,
// enabled or not.
func (k *Core) held() (list []cm.Address) {
	k.Functions.Each(func(_ pfvf.ID, is *config.Function) {
		if is.Tenant == 0 {
			return
		}
		for _, a := range is.Addresses() {
			list = append(list, cm.Address{Tenant: is.Tenant, GID: a.As16()})
		}
		list = append(list, cm.Address{Tenant: is.Tenant, GID: pfvf.LinkLocal(is.MAC)})
	})
	return list
}

// Operate carries out an operator's command on a function, and calls then with the result.
func (k *Core) Operate(id pfvf.ID, c *control.FunctionChange, then func(error)) {
	if c.Action == "reset" {
		k.reset(id, then)
		return
	}
	edit, err := k.Functions.ByOperator(id, c)
	if err != nil {
		then(err)
		return
	}
	k.Change(id, edit, then)
}

// reset does a function-level reset for the operator.
func (k *Core) reset(id pfvf.ID, then func(error)) {
	k.begin(func(_ vtime.Time, done func()) {
		if err := k.Functions.Find(id); err != nil {
			then(err)
			done()
			return
		}
		is := false
		k.onShard(id, func(to Orders, now vtime.Time) { is = to.Reset(now, id) }, func(vtime.Time) {
			var err error
			if !is {
				err = fmt.Errorf("function %s is disabled; enable it first (vnic vf enable)", id)
			}
			then(err)
			done()
		})
	})
}

// Change changes the settings of a VF for its PF, and calls then on the shard's thread. It
// implements the shard's interface for PF commands.
func (c *ShardLink) Change(id pfvf.ID, edit functions.Edit, then func(error)) {
	c.post(func(k *Core, _ vtime.Time) {
		k.Change(id, edit, func(err error) { c.tell(func(Orders, vtime.Time) { then(err) }) })
	})
}

// Visit calls f with a VF, on the thread of the VF's own shard. It calls then with what f returned,
// on the calling shard's thread.
func (c *ShardLink) Visit(id pfvf.ID, f func(abi.VFHandler) (abi.Status, abi.Result), then func(abi.Status, abi.Result)) {
	c.post(func(k *Core, _ vtime.Time) {
		k.begin(func(_ vtime.Time, done func()) {
			var st abi.Status
			var seen abi.Result
			k.onShard(id, func(to Orders, now vtime.Time) { st, seen = f(to.VF(now, id)) }, func(vtime.Time) {
				c.tell(func(Orders, vtime.Time) { then(st, seen) })
				done()
			})
		})
	})
}

// ResetVFs resets the VFs of a PF that belong to other shards.
func (c *ShardLink) ResetVFs(pf pfvf.ID) {
	c.post(func(k *Core, _ vtime.Time) {
		for _, other := range k.shards {
			if other != c {
				other.tell(func(to Orders, now vtime.Time) { to.ResetVFs(now, pf) })
			}
		}
	})
}

// Find returns an error if no function can have this ID. It may be called while the NIC runs.
func (c *ShardLink) Find(id pfvf.ID) error { return c.core.Functions.Find(id) }

// Functions calls f for each function of the NIC that has settings. It is called before the first
// Step.
func (c *ShardLink) Functions(f func(id pfvf.ID, here bool, is *config.Function)) {
	k := c.core
	k.Functions.Each(func(id pfvf.ID, is *config.Function) { f(id, k.cfg.ShardOf(uint32(id)) == c.shard, is) })
}

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
// removes one, or both. It calls then on the shard's thread. The work is queued as a job like
// all changes of functions, so that Withdraw removes everything that was added before it.
func (c *ShardLink) Announce(id pfvf.ID, add, drop [16]byte, then func(error)) {
	c.post(func(k *Core, _ vtime.Time) {
		k.begin(func(now vtime.Time, done func()) {
			answer := func(err error) { c.tell(func(Orders, vtime.Time) { then(err) }) }
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
	if peer, taken := k.Manager.CM.Offered(k.Functions.Settings(id).Tenant, add); taken {
		return functions.Refuse(abi.StatusAddressInUse, "%s: a function of NIC %s has that GID (%x)", id, k.Manager.Name(peer), add)
	}
	return k.Functions.AddGID(id, add, drop)
}

// Withdraw removes all GIDs that a function's driver added. It is called when the driver has gone.
func (c *ShardLink) Withdraw(id pfvf.ID) {
	c.post(func(k *Core, _ vtime.Time) {
		k.begin(func(_ vtime.Time, done func()) {
			if k.Functions.DelGIDs(id) {
				k.gids.changed = true
			}
			k.gids.waiting = slices.DeleteFunc(k.gids.waiting, func(c gidChange) bool { return c.function == id })
			done()
		})
	})
}
