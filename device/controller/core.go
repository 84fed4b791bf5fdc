package controller

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// CoreConfig holds what NewCore needs.
type CoreConfig struct {
	NIC     *config.Config
	Shards  int
	ShardOf func(fn uint32) int // the shard that a function belongs to
	Rand    io.Reader           // for keys and sequence numbers
	Log     func(now vtime.Time, level slog.Level, msg string, args ...any)

	Announced func() // called when functions have changed; it does not wait; nil: nobody asks
}

// Core holds the per-NIC state that shards share: the connection manager and what it knows of
// peers, the keys that peers seal with, the functions and ports that peers are told of, the routes
// of plain IP, and the pools that shards lease credits from. The core decides; shards carry out its
// Orders.
//
//	shards, ShardLink ┐                      ┌▶ ShardLink ─▶ Orders, on the shard's thread
//	peers' mail ──────┼▶ Box ─▶ Step ────────┼▶ messages for peers
//	Ask ──────────────┘   conn.Manager, Keys └▶ answers
//
// All its state belongs to the goroutine that steps it (Run). Other goroutines reach it by Do.
type Core struct {
	Manager   *conn.Manager
	Keys      *security.Keys
	Functions *functions.Registry
	Peers     *Peers

	cfg     CoreConfig
	box     inbox.Box
	effects effect.List
	shards  []*ShardLink
	plain   plain
	paths   paths
	alive   alive
	moves   moves
	credits credits
	resolve []netip.AddrPort        // where peers are that packets will probably go to soon
	asked   map[netip.AddrPort]bool // the same addresses
	refused uint64                  // messages of peers that were refused
	faults  uint64                  // panics while news of peers was handled
	ends    []cm.PeerID             // peers whose links must end because of that
	links   []LinkChange            // that were not passed on yet
	jobs    jobs
	gids    gids
	untold  bool // functions or ports have changed since peers were told
	woken   chan struct{}
	ended   chan struct{}
	stop    atomic.Bool
}

// CoreOutput is the result of a Step.
type CoreOutput struct {
	Messages []conn.Message // for the connection managers of other NICs
	Ends     []cm.PeerID    // peers whose links must end, before the messages are sent
	Links    []LinkChange   // peers that are new, changed or gone
	Effects  effect.List    // to be run before the next Step
	Deadline vtime.Time     // latest time of the next Step
}

// NewCore returns a core. Each shard must call Serve on its ShardLink before the first Step.
func NewCore(c CoreConfig) (*Core, error) {
	k := &Core{
		cfg: c, asked: map[netip.AddrPort]bool{}, woken: make(chan struct{}, 1), ended: make(chan struct{}),
		plain: newPlain(c.NIC), alive: alive{every: vtime.Time(c.NIC.Uplink.Keepalive), due: vtime.Never}, paths: paths{due: vtime.Never, next: vtime.LongAgo, off: c.NIC.Uplink.ProbeMTU == config.ProbeMTUOff}, credits: newCredits(c.NIC, c.Shards),
	}
	k.box.WakeBy(k.wake)
	k.box.AnswerBy(k.effects.Add)
	var err error
	if k.Functions, err = functions.New(c.NIC); err != nil {
		return nil, err
	}
	k.untold = true
	k.Keys, err = security.NewKeys(security.Config{
		Version: c.NIC.PSP.Version, Shards: c.Shards, Transport: c.NIC.PSP.Mode == config.PSPTransport, ReplayMargin: c.NIC.PSP.ReplayMargin,
		RotateEvery: *c.NIC.PSP.RotateEvery, Rand: c.Rand, Needed: k.keyNeeded, Name: func(p cm.PeerID) string { return k.Manager.Name(p) }, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	m := conn.ManagerConfig{
		Host: c.NIC.NIC.Host, MTU: c.NIC.RDMA.MTU, ShardOf: c.ShardOf, Shards: shardsOf{k}, Keys: peerKeys{k}, Log: c.Log, PortsChanged: k.portsChanged, Resolve: k.Resolve,
	}
	for i := range c.Shards {
		m.CIDs = append(m.CIDs, conn.NewCIDs(i, conn.MaxSlots))
		k.shards = append(k.shards, newShardLink(k, i))
	}
	if k.Manager, err = conn.NewManager(m, c.Rand); err != nil {
		return nil, fmt.Errorf("connection manager: %w", err)
	}
	k.Keys.Connect(k.Manager.CM)
	k.Peers = newPeers(k)
	k.Peers.set(vtime.LongAgo, c.NIC.Peers)
	return k, nil
}

// ShardLink returns the link of a shard.
func (k *Core) ShardLink(shard int) *ShardLink { return k.shards[shard] }

// Step handles all input that has arrived from shards, peers and callers, and runs the timers. It
// reads no clock and does no I/O.
func (k *Core) Step(now vtime.Time, out *CoreOutput) {
	for _, src := range k.box.Take() {
		src.Drain(now)
	}
	k.runJobs(now)
	if len(k.jobs.waiting) == 0 {
		k.announce(now)
	}
	if now >= k.Keys.Deadline() {
		k.Keys.Advance(now)
	}
	k.probe(now)
	k.showAlive(now)
	k.advanceMoves(now)
	k.advance(now)
	k.resolveAll()
	for _, l := range k.shards {
		l.deliver()
	}
	out.Messages = append(out.Messages[:0], k.Manager.Messages()...)
	out.Ends, k.ends = append(out.Ends[:0], k.ends...), k.ends[:0]
	out.Links, k.links = append(out.Links[:0], k.links...), nil
	out.Effects.Take(&k.effects)
	out.Deadline = min(k.Keys.Deadline(), k.Manager.CM.Deadline(), k.paths.due, k.alive.due, k.moves.deadline())
	if len(k.jobs.waiting) == 0 { // else peers are told when the jobs are done
		out.Deadline = min(out.Deadline, k.gids.deadline())
	}
}

// Idle reports whether the inbox is empty.
func (k *Core) Idle() bool { return k.box.Empty() }

// shardsOf sends the connection manager's answers and decisions to the shards.
type shardsOf struct{ k *Core }

// Answer implements conn.Shards.
func (s shardsOf) Answer(shard int, a conn.Answer) {
	s.k.shards[shard].tell(func(to Orders, now vtime.Time) { to.Answer(now, &a) })
}

// Decide implements conn.Shards.
func (s shardsOf) Decide(shard int, d conn.Decision) {
	s.k.shards[shard].tell(func(to Orders, now vtime.Time) { to.Decide(now, &d) })
}

// all sends an order to every shard.
func (k *Core) all(o Order) {
	for _, l := range k.shards {
		l.tell(o)
	}
}

// Resolve prepares for packets to an underlay address. Shards are told of an address once per Step,
// however many messages go there.
func (k *Core) Resolve(_ vtime.Time, addr netip.AddrPort) {
	if !k.asked[addr] {
		k.asked[addr] = true
		k.resolve = append(k.resolve, addr)
	}
}

func (k *Core) resolveAll() {
	for _, addr := range k.resolve {
		k.all(func(to Orders, now vtime.Time) { to.Resolve(now, addr) })
	}
	k.resolve = k.resolve[:0]
	clear(k.asked)
}

// keyNeeded reports whether keys for u are still needed: the peer can be told of a new one or, for
// a gateway key, it has ports in the tenant to send from.
func (k *Core) keyNeeded(u security.Use) bool {
	return k.Manager.Reachable(u.Peer) || u.Class == cm.ClassGateway && k.plain.routes.Reaches(u.Peer, u.Tenant)
}

// peerKeys gives the connection manager access to the keys agreed with other NICs.
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
func (p peerKeys) ForgetSAs(peer cm.PeerID) {
	p.k.Keys.ForgetPeer(peer)
	p.k.all(func(to Orders, _ vtime.Time) { to.ForgetKeys(peer) })
}

// HandleKeys implements conn.PeerKeys.
func (p peerKeys) HandleKeys(now vtime.Time, o *cm.Output) {
	u, sa := o.Use, o.SA
	switch o.Kind {
	case cm.OutRekey:
		if int(u.Shard) < len(p.k.shards) { // the shard that seals with this key
			p.k.shards[u.Shard].tell(func(to Orders, now vtime.Time) { to.TakeKey(now, u, sa) })
		}
	case cm.OutRekeyed:
		p.k.Keys.Confirmed(now, u, sa.SPI, o.Time)
	case cm.OutRekeyWanted:
		p.k.Keys.Asked(now, u, sa.SPI)
	}
}

// Links are the links to the connection managers of other NICs. The core's goroutine calls all but
// Open.
type Links interface {
	// Open listens for peers, or returns why there can be no links.
	Open() error
	// Domain returns that of this NIC's certificate, which its peers have too; "": there is none yet.
	Domain() string
	// Set makes or changes the link to a peer.
	Set(p *Peer)
	// Remove ends the link to a peer when what was sent has left. No news of it follows.
	Remove(peer cm.PeerID)
	// Send sends a message. One that cannot be sent is lost with the link, which the manager learns
	// by PeerDown.
	Send(peer cm.PeerID, msg []byte)
	// End breaks the link; it connects again.
	End(peer cm.PeerID, reason error)
	// Note describes a problem with the link; "": none.
	Note(peer cm.PeerID) string
	// Ahead returns how far a peer's clock is ahead of this NIC's; 0 also if that is not known.
	Ahead(peer cm.PeerID) time.Duration
}

// Run steps the core until Halt.
func (k *Core) Run(clock func() int64, links Links) {
	var out CoreOutput
	due := time.NewTimer(0)
	defer due.Stop()
	for !k.stop.Load() {
		k.Step(clock(), &out)
		out.Effects.Do()
		out.pass(links)
		k.sleep(due, out.Deadline-clock())
	}
}

// pass gives the links what a Step has for them.
func (o *CoreOutput) pass(links Links) {
	for _, peer := range o.Ends {
		links.End(peer, errFault)
	}
	for _, m := range o.Messages {
		links.Send(m.Peer, m.Data)
	}
	for _, c := range o.Links { // in order: a peer that is new may have the name of one that is gone
		if c.Gone {
			links.Remove(c.ID)
		} else {
			links.Set(c.Peer)
		}
	}
	clear(o.Messages)
	clear(o.Links)
}

// sleep waits ns nanoseconds, or until there is input.
func (k *Core) sleep(due *time.Timer, ns int64) {
	defer k.box.Unpark()
	if ns <= 0 || !k.box.Park() {
		return
	}
	due.Reset(time.Duration(ns))
	select {
	case <-k.woken:
	case <-due.C:
	}
}

// wake makes the core look at its inbox. It never blocks.
func (k *Core) wake() {
	select {
	case k.woken <- struct{}{}:
	default:
	}
}

// Halt makes Run return soon.
func (k *Core) Halt() {
	k.stop.Store(true)
	k.wake()
}

// Stop refuses further input. It is called when Run has returned. Callers that still wait get
// inbox.ErrStopped.
func (k *Core) Stop() {
	k.box.Stop()
	close(k.ended)
}

// Do runs f on the core's goroutine and returns when it is done (inbox.Box.Do).
func (k *Core) Do(f func(now vtime.Time)) error { return k.box.Do(f) }

// ask runs f on the core's goroutine, and returns the error that f passes to then, at once or
// later.
func (k *Core) ask(f func(then func(error))) error {
	answer := make(chan error, 1)
	if err := k.Do(func(vtime.Time) { f(func(err error) { answer <- err }) }); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-k.ended:
	}
	select {
	case err := <-answer: // it came before the end
		return err
	default:
		return inbox.ErrStopped
	}
}
