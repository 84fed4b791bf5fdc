package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Config holds what an API reads its answers from.
type Config struct {
	Host    uint8
	Name    string
	CMName  string
	Version string
	Started time.Time

	Shards     Shards
	Core       *Core
	Links      Links       // links to the peers; nil: none
	Supervisor *Supervisor // nil: none
	Warnings   *Warnings
	Settings   *settings.Memory
	PeerMemory *settings.PeerMemory
	Fitter     Fitter
	Counters   func(control.Counters) // adds the counters that do not belong to a shard
	WallOffset func() int64           // wall clock minus the shards' clock, ns
	Log        *slog.Logger
}

// Fitter gives functions the parts of their settings that a shard cannot make: windows and ports.
type Fitter interface {
	// Fit makes what is missing and returns, for each function that did not get its part, the
	// error.
	Fit() map[pfvf.ID]error
}

// Supervisor describes the process that restarts this one.
type Supervisor struct {
	PID    int
	Starts int // number of workers started so far, this one included
	Stuck  int // number of workers replaced because their event loop was stuck

	// Upgraded returns how many upgrades were requested, and why the last one was not done ("": it
	// was done).
	Upgraded func() (asked int, refused string)
	// Reloaded returns the same for reloads; nil: the supervisor is of an older version, which
	// has none.
	Reloaded func() (asked int, refused string)
}

// API answers the requests of operators. It implements control.Provider.
type API struct {
	c       Config
	changes sync.Mutex // one change of functions or peers at a time: it has several steps, the last of which remembers it
}

// NewAPI returns an API. The shards of c may start later.
func NewAPI(c Config) *API { return &API{c: c} }

// OtherMode is the note about a peer whose psp.mode is another one.
const OtherMode = "seals with another psp.mode"

// NIC describes the device.
func (a *API) NIC(context.Context) (control.NIC, error) {
	c := &a.c
	v := control.NIC{Host: c.Host, Name: c.Name, CMName: c.CMName, Version: c.Version, PID: os.Getpid(), UptimeMS: time.Since(c.Started).Milliseconds()}
	if s := c.Supervisor; s != nil {
		v.PID, v.Worker, v.Starts, v.Stuck = s.PID, v.PID, s.Starts, s.Stuck
		v.Upgrades, v.UpgradeRefused = s.Upgraded()
		if v.Reloadable = s.Reloaded != nil; v.Reloadable {
			v.Reloads, v.ReloadRefused = s.Reloaded()
		}
	}
	v.Warnings = c.Warnings.List()
	if err := c.Core.Do(func(vtime.Time) { v.Peers = c.Core.DescribePeers(c.Links) }); err != nil {
		return v, err
	}
	var otherwise []string
	err := c.Shards.Each(func(s View, now vtime.Time) {
		otherwise = append(otherwise, s.Peers.OtherModes(now)...)
		if v.Uplinks == nil {
			v.Uplinks = []control.Uplink{s.Uplink.Describe()}
			return
		}
		addUplink(&v.Uplinks[0], s.Uplink.Describe())
	})
	if err != nil {
		return v, err
	}
	for i := range v.Peers {
		if p := &v.Peers[i]; slices.Contains(otherwise, p.Name) {
			p.Note = OtherMode
		}
	}
	return v, nil
}

// Peers describes the other NICs.
func (a *API) Peers(ctx context.Context) ([]control.Peer, error) {
	v, err := a.NIC(ctx)
	return v.Peers, err
}

// addUplink adds the packet counts of part, another shard's queue of the same uplink, to u.
func addUplink(u *control.Uplink, part control.Uplink) {
	addImpaired(&u.RX.Counts, part.RX.Counts)
	addImpaired(&u.TX.Counts, part.TX.Counts)
}

func addImpaired(to *control.Impaired, c control.Impaired) {
	to.Packets, to.Delivered, to.Lost, to.Duplicated = to.Packets+c.Packets, to.Delivered+c.Delivered, to.Lost+c.Lost, to.Duplicated+c.Duplicated
	to.Reordered, to.Corrupted, to.Marked, to.Overflowed = to.Reordered+c.Reordered, to.Corrupted+c.Corrupted, to.Marked+c.Marked, to.Overflowed+c.Overflowed
}

// Functions describes every PF and VF: those that exist, and those that are only configured.
func (a *API) Functions(ctx context.Context) (list []control.Function, err error) {
	err = a.c.Shards.EachFunction(ctx, func(v View, _ vtime.Time, id pfvf.ID) { list = append(list, v.Functions.Describe(id)) })
	if err != nil {
		return nil, err
	}
	err = a.c.Shards.Each(func(v View, _ vtime.Time) {
		for _, id := range v.Functions.Absent() {
			list = append(list, v.Functions.Describe(id))
		}
	})
	slices.SortFunc(list, func(a, b control.Function) int { return int(a.Number) - int(b.Number) })
	return list, err
}

// pathsPerAsk is the number of connections per Ask. It limits how long one Ask keeps a shard busy.
const pathsPerAsk = 256

// Connections describes every connection, established or not.
func (a *API) Connections(ctx context.Context) (list []control.Connection, err error) {
	core := a.c.Core
	if err = core.Do(func(now vtime.Time) { list = core.Connections(now) }); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(list, pathsPerAsk) {
		if err = a.c.Shards.Each(func(v View, _ vtime.Time) { v.Peers.Paths(part) }); err != nil {
			return nil, err
		}
	}
	err = a.c.Shards.EachFunction(ctx, func(v View, now vtime.Time, id pfvf.ID) { list = append(list, v.Objects.Connections(now, id)...) })
	return list, err
}

// Routes lists the routes of plain IP.
func (a *API) Routes(context.Context) (list []control.Route, err error) {
	if err = a.c.Core.Do(func(vtime.Time) { list = a.c.Core.Routes() }); err != nil {
		return nil, err
	}
	type way struct {
		peer   string
		tenant uint32
	}
	keys := map[way]bool{} // whether every shard that sends this way has a key
	err = a.c.Shards.Each(func(v View, _ vtime.Time) {
		for _, t := range v.Peers.Tunnels() {
			to := way{t.PeerName, t.Tenant}
			before, known := keys[to]
			keys[to] = t.Sealed && (before || !known)
		}
	})
	for i := range list {
		if r := &list[i]; r.Kind == "peer" {
			r.Sealed = keys[way{r.PeerName, r.Tenant}]
		}
	}
	return list, err
}

// RotateKeys replaces the PSP master key and the keys of all peers.
func (a *API) RotateKeys(context.Context) (r control.Rotation, err error) {
	core := a.c.Core
	stopped := core.Do(func(now vtime.Time) { r, err = core.RotateKeys(now) })
	return r, errors.Join(stopped, err)
}

// Counters returns the counters of the whole NIC: traffic, drops by reason and the rest.
func (a *API) Counters(context.Context) (control.Counters, error) {
	sum := control.Counters{}
	if err := a.c.Core.Do(func(vtime.Time) { a.c.Core.count(sum) }); err != nil {
		return nil, err
	}
	err := a.c.Shards.Each(func(v View, _ vtime.Time) {
		for name, n := range v.Counters() {
			sum[name] += n
		}
	})
	if err != nil {
		return nil, err
	}
	a.c.Counters(sum)
	return sum, nil
}

// QPs describes every queue pair.
func (a *API) QPs(ctx context.Context) (list []control.QP, err error) {
	err = a.c.Shards.EachFunction(ctx, func(v View, _ vtime.Time, id pfvf.ID) { list = append(list, v.Objects.QPs(id)...) })
	return list, err
}

// Queues describes every ring in guests' memory.
func (a *API) Queues(ctx context.Context) (list []control.Queue, err error) {
	err = a.c.Shards.EachFunction(ctx, func(v View, _ vtime.Time, id pfvf.ID) { list = append(list, v.Objects.Queues(id)...) })
	return list, err
}

// Credits describes the credit tree: NIC, host, functions and their connections.
func (a *API) Credits(ctx context.Context) (list []control.CreditNode, err error) {
	if err = a.c.Shards.Each(func(v View, _ vtime.Time) { list = addCredits(list, v.Objects.CreditRoots()) }); err != nil {
		return nil, err
	}
	err = a.c.Shards.EachFunction(ctx, func(v View, _ vtime.Time, id pfvf.ID) { list = append(list, v.Objects.Credits(id)...) })
	return list, err
}

// Keys describes the security associations. No answer holds a key.
func (a *API) Keys(context.Context) (list []control.Key, err error) {
	if err = a.c.Core.Do(func(vtime.Time) { list = a.c.Core.KeyList() }); err != nil {
		return nil, err
	}
	if err = a.c.Shards.Each(func(v View, _ vtime.Time) { list = append(list, v.Peers.Keys()...) }); err != nil {
		return nil, err
	}
	err = a.c.Core.Do(func(vtime.Time) {
		for i := range list {
			list[i].Peer = a.c.Core.peerHost(list[i].PeerName)
		}
	})
	return list, err
}

// Violations lists the rules that drivers broke.
func (a *API) Violations(ctx context.Context) (list []control.Violation, err error) {
	err = a.c.Shards.EachFunction(ctx, func(v View, now vtime.Time, id pfvf.ID) { list = append(list, v.Objects.Violations(now, id)...) })
	return list, err
}

// ClearViolations forgets the rules that drivers broke, and returns the list it forgot.
func (a *API) ClearViolations(ctx context.Context) (list []control.Violation, err error) {
	err = a.c.Shards.EachFunction(ctx, func(v View, now vtime.Time, id pfvf.ID) {
		list = append(list, v.Objects.Violations(now, id)...)
		v.Objects.ClearViolations(id)
	})
	return list, err
}

// ID parses the name of a function. The host may be left out.
func (a *API) ID(name string) (pfvf.ID, error) {
	if strings.HasPrefix(name, "pf") {
		name = fmt.Sprintf("h%d.%s", a.c.Host, name)
	}
	return pfvf.ParseID(name)
}
