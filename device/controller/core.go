package controller

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// CoreConfig is what a core works with.
type CoreConfig struct {
	NIC    *config.Config
	Shards int
	Home   func(fn uint32) int // the shard that a function belongs to
	Rand   io.Reader           // of keys and sequence numbers
	Log    func(now vtime.Time, level slog.Level, msg string, args ...any)
}

// Core is what there is once for a NIC, however many shards it has: the connection manager with
// what it knows of peers, the keys that they seal with, what they are told of functions and ports,
// where plain IP goes, and the pools that shards lease credits from. It decides; shards carry out
// (Side) what it has for them.
//
//	shards ─ Line ─┐                      ┌▶ Line ─▶ Side, on the shard's thread
//	peers' mail ───┼▶ Box ─▶ Step ────────┼▶ messages for peers
//	Ask ───────────┘   conn.Manager, Keys └▶ answers
//
// Everything in it belongs to the goroutine that steps it (Run), which others reach by Do.
type Core struct {
	Manager   *conn.Manager
	Keys      *security.Keys
	Functions *functions.Registry

	cfg     CoreConfig
	box     inbox.Box[*Core]
	effects effect.List
	lines   []*Line
	plain   plain
	credits credits
	resolve []netip.Addr // of peers that packets are likely to follow to
	refused uint64       // messages of peers
	jobs    jobs
	gids    gids
	untold  bool // functions or ports have changed since peers were told
	known   atomic.Pointer[cm.Known]
	woken   chan struct{}
	ended   chan struct{}
	stop    atomic.Bool
}

// CoreOutput is what a Step leaves.
type CoreOutput struct {
	Messages []conn.Message // for the connection managers of other NICs
	Effects  effect.List    // to be done before the next Step
	Deadline vtime.Time     // Step again at this time at the latest
}

// NewCore returns a core whose shards are not there yet: each serves its Line before the first
// Step.
func NewCore(c CoreConfig) (*Core, error) {
	k := &Core{
		cfg: c, woken: make(chan struct{}, 1), ended: make(chan struct{}),
		plain: newPlain(c.NIC), credits: newCredits(c.NIC, c.Shards),
	}
	k.box.WakeBy(k.wake)
	var err error
	if k.Functions, err = functions.New(c.NIC); err != nil {
		return nil, err
	}
	k.untold = true
	k.Keys, err = security.NewKeys(security.Config{
		Version: c.NIC.PSP.Version, Shards: c.Shards, Transport: c.NIC.PSP.Mode == config.PSPTransport, ReplayMargin: c.NIC.PSP.ReplayMargin,
		RotateEvery: *c.NIC.PSP.RotateEvery, Rand: c.Rand, Needed: k.keyNeeded, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	m := conn.ManagerConfig{
		Host: c.NIC.NIC.Host, MTU: c.NIC.RDMA.MTU, Home: c.Home, Shards: shardsOf{k}, Keys: peerKeys{k}, Ports: k, Neighbours: k, Log: c.Log,
	}
	for i := range c.Shards {
		m.CIDs = append(m.CIDs, conn.NewCIDs(i, conn.MaxSlots))
		k.lines = append(k.lines, newLine(k, i))
	}
	owners := c.NIC.Owners()
	for i := range c.NIC.Peers {
		p := &c.NIC.Peers[i]
		m.Peers = append(m.Peers, cm.Peer{Host: p.Host, Underlay: p.Underlay, Tenants: p.Tenants, MayHave: func(a cm.Address) string {
			return owners.Refuses(p.Host, a.Tenant, a.IP())
		}})
	}
	if k.Manager, err = conn.NewManager(m, c.Rand); err != nil {
		return nil, fmt.Errorf("connection manager: %w", err)
	}
	k.Keys.Connect(k.Manager)
	k.known.Store(k.Manager.Known())
	return k, nil
}

// Line is that of a shard.
func (k *Core) Line(shard int) *Line { return k.lines[shard] }

// Step does everything there is to do at one moment: it takes what shards, peers and callers have
// for it, and runs the timers. It reads no clock and does no I/O.
func (k *Core) Step(now vtime.Time, out *CoreOutput) {
	for _, src := range k.box.Take() {
		src.Drain(k, now)
	}
	k.runJobs(now)
	if len(k.jobs.waiting) == 0 {
		k.announce(now)
	}
	if now >= k.Keys.Deadline() {
		k.Keys.Advance(now)
	}
	if now >= k.Manager.Deadline() {
		k.Manager.Advance(now)
	}
	k.Manager.Run(now)
	k.known.Store(k.Manager.Known())
	k.resolveAll()
	for _, l := range k.lines {
		l.deliver()
	}
	out.Messages = append(out.Messages[:0], k.Manager.Messages()...)
	out.Effects.Take(&k.effects)
	out.Deadline = min(k.Keys.Deadline(), k.Manager.Deadline())
	if len(k.jobs.waiting) == 0 { // else peers are told when those are done
		out.Deadline = min(out.Deadline, k.gids.deadline())
	}
}

// Idle reports whether nothing waits to be taken.
func (k *Core) Idle() bool { return k.box.Empty() }

// Answer implements inbox.Owner.
func (k *Core) Answer(e effect.Effect) { k.effects.Add(e) }

// shardsOf is where functions' answers and orders go.
type shardsOf struct{ k *Core }

// Answer implements conn.Shards.
func (s shardsOf) Answer(shard int, a conn.Answer) {
	s.k.lines[shard].tell(func(to Side, now vtime.Time) { to.Answer(now, &a) })
}

// Order implements conn.Shards.
func (s shardsOf) Order(shard int, o conn.Order) {
	s.k.lines[shard].tell(func(to Side, now vtime.Time) { to.Order(now, &o) })
}

// all tells every shard.
func (k *Core) all(o Order) {
	for _, l := range k.lines {
		l.tell(o)
	}
}

// Resolve implements conn.Neighbours. However many messages a Step has for a peer, shards are told
// once.
func (k *Core) Resolve(_ vtime.Time, addr netip.Addr) {
	if !slices.Contains(k.resolve, addr) {
		k.resolve = append(k.resolve, addr)
	}
}

func (k *Core) resolveAll() {
	for _, addr := range k.resolve {
		k.all(func(to Side, now vtime.Time) { to.Resolve(now, addr) })
	}
	k.resolve = k.resolve[:0]
}

// keyNeeded tells whether a peer is there to be told of another key, or has ports to send from.
func (k *Core) keyNeeded(u security.Use) bool {
	return k.Manager.Reachable(u.Peer) || u.Class == cm.ClassGateway && k.plain.routes.Reaches(u.Peer, u.Tenant)
}

// peerKeys has the keys that are agreed with other NICs.
type peerKeys struct{ k *Core }

// RxSA implements conn.PeerKeys.
func (p peerKeys) RxSA(u cm.Use) (cm.SA, error) { return p.k.Keys.Issue(u) }

// Receive implements conn.PeerKeys.
func (p peerKeys) Receive(c *cm.Params) (conn.Receiving, error) {
	r, ok := p.k.Keys.Receive(security.Use{Peer: c.Peer, Shard: c.PeerShard, Tenant: c.Tenant}, c.RemoteTime)
	if !ok {
		return nil, errors.New("the peer restarted while connecting")
	}
	return &r, nil
}

// ForgetSAs implements conn.PeerKeys.
func (p peerKeys) ForgetSAs(host cm.HostID) {
	p.k.Keys.ForgetPeer(host)
	p.k.all(func(to Side, _ vtime.Time) { to.ForgetKeys(host) })
}

// HandleKeys implements conn.PeerKeys.
func (p peerKeys) HandleKeys(now vtime.Time, o *cm.Output) {
	u, sa := o.Use, o.SA
	switch o.Kind {
	case cm.OutRekey:
		if int(u.Shard) < len(p.k.lines) { // which seals with it
			p.k.lines[u.Shard].tell(func(to Side, now vtime.Time) { to.TakeKey(now, u, sa) })
		}
	case cm.OutRekeyed:
		p.k.Keys.Confirmed(now, u, sa.SPI, o.Time)
	case cm.OutRekeyWanted:
		p.k.Keys.Asked(now, u, sa.SPI)
	}
}
