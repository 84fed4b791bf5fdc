package device

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// NIC is one emulated NIC: shards with their threads, the sessions of its guests, the links to its
// peers and the control API. Make it with NewNIC, then Run it once.
type NIC struct {
	*controller.API

	cfg      *config.Config
	shards   func(pf uint8, vf uint16) int // the shard of a function
	deps     Deps
	log      *slog.Logger
	lines    loglimit.Queue // queue in front of log
	limited  *loglimit.Log
	clock    func() int64
	core     *controller.Core
	units    units // one per shard
	links    links
	control  *control.Server
	http     httpRunning
	records  records
	sessions guest.Sessions
	memory   controller.GuestMemory
	fitter   fitter
	fleet    *fleet // nil: peers come from the configuration alone

	settings *settings.Memory
	peers    *settings.PeerMemory
	warnings *controller.Warnings
	ready    chan struct{}

	reload struct {
		sync.Mutex
		was     *config.Config // the configuration, as it was last read
		changed []string       // what had changed when it was last read again
	}
}

// Version is the version of the program, which sets it for the control API.
var Version = "dev"

var _ control.Provider = (*NIC)(nil)

// NewNIC returns a NIC for a checked configuration. It opens what Deps lacks.
func NewNIC(cfg *config.Config, deps Deps) (*NIC, error) {
	n, err := newNIC(cfg, deps)
	if err != nil {
		deps.close()
		return nil, fmt.Errorf("nic %s: %w", cfg.NIC.Name, err)
	}
	return n, nil
}

func newNIC(cfg *config.Config, deps Deps) (*NIC, error) {
	n := &NIC{cfg: cfg, shards: cfg.ShardOf(), deps: deps, log: deps.Log, clock: deps.Clock, ready: make(chan struct{})}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.log = slog.New(n.lines.Handler(n.log.Handler())).With("nic", cfg.NIC.Name)
	n.limited = &loglimit.Log{To: n.log}
	n.warnings = controller.NewWarnings(n.log)
	n.sessions.HelloTimeout = guest.HelloTimeout
	if n.clock == nil {
		n.clock = monotonic()
	}
	if n.deps.Rand == nil {
		n.deps.Rand = rand.Reader
	}
	n.memory.Limit = controller.ReadMemoryLimit("/")
	err := errors.Join(thread.CheckProcessors(cfg.NIC.CPU), n.memory.Limit.Check())
	if err != nil {
		return nil, err
	}
	n.reload.was, n.reload.changed = cfg, []string{}
	n.links = links{log: n.log, cfg: cfg, self: deps.Identity}
	if cfg.HasPeers() {
		if err = n.links.identify(); err != nil {
			return nil, err
		}
	}
	if cfg.Directory.Etcd != nil {
		n.fleet = newFleet(cfg, &n.links, n.log)
	}
	n.settings, n.peers = settings.NewMemory(deps.Settings), settings.NewPeerMemory(deps.Peers)
	if err = n.newShards(); err != nil {
		n.records.closeTapes()
		return nil, err
	}
	if err = n.openDevices(); err != nil {
		n.closeOpened(&deps)
		return nil, err
	}
	n.fitter.recall()
	c := controller.Config{
		Host: cfg.NIC.Host, Name: cfg.NIC.Name, CMName: cfg.CM.Name, Version: Version, Started: time.Now(), Shards: n.asked(), Core: n.core, Links: &n.links,
		Supervisor: deps.Supervisor, Warnings: n.warnings, Settings: n.settings, PeerMemory: n.peers, Fitter: &n.fitter, Counters: n.countRest, WallOffset: n.wallOffset, Log: n.log,
	}
	n.API = controller.NewAPI(c)
	return n, nil
}

// newShard returns a shard that is connected with the core.
func newShard(i int, cfg *config.Config, core *controller.Core, t *tape.Tape, log *slog.Logger) (*shard.Shard, error) {
	link := core.ShardLink(i)
	s, err := shard.New(i, cfg, link, t, log)
	if err != nil {
		return nil, err
	}
	orders := s.Orders()
	link.Serve(inbox.NewMailbox(s.Inbox(), 0, func(now falcon.Time, o *controller.Order) { (*o)(orders, now) }).Send)
	return s, nil
}

// newShards creates the core and the shards.
func (n *NIC) newShards() (err error) {
	n.core, err = controller.NewCore(controller.CoreConfig{
		NIC: n.cfg, Shards: n.cfg.NIC.Shards, ShardOf: n.shardOf, Rand: n.deps.Rand, Log: n.limited.Line, Announced: n.fleet.announced,
	})
	if err != nil {
		return err
	}
	n.recall()
	n.records = records{cfg: n.cfg, warnings: n.warnings, log: n.log, capture: n.deps.Capture, failures: make(chan failure, maxFailures)}
	if err = n.records.startTapes(n.deps.Record, n.wallOffset(), n.deps.KeepRing); err != nil {
		return err
	}
	var shards []*shard.Shard
	for i := range n.cfg.NIC.Shards {
		s, err := newShard(i, n.cfg, n.core, n.records.tape(i), n.log)
		if err != nil {
			return err
		}
		var secret [32]byte
		if _, err = io.ReadFull(n.deps.Rand, secret[:]); err != nil {
			return fmt.Errorf("random numbers: %w", err)
		}
		s.UseSecret(secret)
		s.UseClock(n.clock)
		s.Guests().Failed = n.records.failed
		n.units = append(n.units, &unit{Shard: s})
		shards = append(shards, s)
	}
	shard.Join(shards)
	n.fitter = fitter{units: n.units, deps: &n.deps, windowless: map[pfvf.ID]uint32{}, clock: n.clock, log: n.log, guestLog: n.guestLog}
	return nil
}

// recall applies the operators' settings from the earlier run, of functions and peers. It is called before there are
// shards. It leaves out what no longer fits the configuration.
func (n *NIC) recall() {
	refused, err := n.settings.Recall(func(id pfvf.ID, c *control.FunctionChange) error { return n.core.Functions.Recall(id, c) })
	if err != nil {
		n.log.Warn("what was set of functions is lost", "err", err)
	}
	for id, err := range refused {
		n.log.Warn("function not set again as it was", "function", id.String(), "err", err)
	}
	list, err := n.peers.Recall(n.cfg.Peers)
	if err == nil {
		err = n.core.Peers.Set(n.clock(), list)
	}
	if err != nil {
		n.log.Warn("peers are those of the configuration, not as they were set", "err", err)
	}
}

// openDevices opens the uplink, the capture, the key log and the ports, and creates the shards'
// threads.
func (n *NIC) openDevices() (err error) {
	awaitAddresses(n.cfg)
	if err = n.openUplink(); err != nil {
		return err
	}
	n.records.open(n.units, n.core, n.wallOffset())
	for i, u := range n.units {
		if u.ports, err = ports.Open(u.Ports(), n.deps.sources(), n.clock, n.log); err != nil {
			return err
		}
		if err = n.newThread(i, u); err != nil {
			return err
		}
	}
	return nil
}

// shardOf returns the shard that owns a function.
func (n *NIC) shardOf(fn uint32) int { return n.shards(pfvf.ID(fn).PF(), pfvf.ID(fn).VF()) }

// openUplink opens the uplink and gives each shard its part.
func (n *NIC) openUplink() error {
	if n.cfg.Uplink.Type == config.UplinkUDP {
		return n.units.listen(n.cfg)
	}
	if n.deps.Uplink == nil {
		var err error
		if n.deps.Uplink, err = openTAP(n.cfg, n.deps.TAPs); err != nil {
			return err
		}
	}
	if err := n.units.share(n.cfg, n.deps.Uplink, n.log); err != nil {
		return err
	}
	n.deps.Uplink = nil // owned by the units now
	return nil
}

// newThread creates the thread of a unit.
func (n *NIC) newThread(i int, u *unit) error {
	c := thread.Config{Clock: n.clock, Spin: int64(*n.cfg.NIC.Spin), Log: n.log}
	if i < len(n.cfg.NIC.CPU) {
		c.CPU = &n.cfg.NIC.CPU[i]
	}
	if i < len(n.deps.Pulses) {
		c.Pulse = n.deps.Pulses[i]
	}
	return u.newThread(c, n.cfg.Uplink.Impair, i)
}

// asked returns all shards for the API.
func (n *NIC) asked() controller.Shards {
	s := controller.Shards{Of: n.shards}
	for _, u := range n.units {
		s.All = append(s.All, viewer{u: u, uplink: &n.cfg.Uplink})
	}
	return s
}

// countRest adds the counters that do not belong to a shard.
func (n *NIC) countRest(v control.Counters) {
	c := counters.NIC{Warnings: uint64(len(n.warnings.List()))}
	n.links.count(v)
	n.fleet.counters(v)
	if s := n.deps.Supervisor; s != nil {
		c.Starts, c.Stuck = uint64(s.Starts), uint64(s.Stuck)
		counters.OfWorker.Add(v, &c)
	}
	if k := n.records.capture; k != nil {
		c.CaptureDropped = k.Drops()
		counters.OfCapture.Add(v, &c)
	}
	if f := n.deps.GuestMemory; f != nil {
		c.GuestBytes, c.GuestMaps, c.GuestRefused = f()
	}
	counters.OfNIC.Add(v, &c)
}

// closeOpened closes what NewNIC itself opened.
func (n *NIC) closeOpened(given *Deps) {
	for _, u := range n.units {
		u.close()
	}
	if n.deps.Uplink == nil {
		given.Uplink = nil // it was owned by the units
	} else if given.Uplink == nil {
		_ = n.deps.Uplink.Close()
	}
	if given.Capture != nil { // NewNIC closes it
		n.records.capture = nil
	}
	n.records.close()
}

// monotonic returns a clock of ns since the machine started, so that the clock of a restarted
// process does not go back.
func monotonic() func() int64 {
	var ts unix.Timespec
	base := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return func() int64 { return int64(time.Since(base)) + 1 }
	}
	offset := ts.Nano()
	return func() int64 { return offset + int64(time.Since(base)) }
}

// wallOffset returns the wall clock minus the shards' clock, in nanoseconds.
func (n *NIC) wallOffset() int64 { return time.Now().UnixNano() - n.clock() }

// Ready returns a channel that is closed when Run has everything listening, and Deps.Begin has
// returned.
func (n *NIC) Ready() <-chan struct{} { return n.ready }

// Run serves until ctx is done, then shuts everything down: guests are detached, connections
// closed, and descriptors and goroutines gone when it returns. It returns no error after
// Deps.Begin. It may be called once.
func (n *NIC) Run(ctx context.Context) error {
	defer n.records.close()
	err := n.listenControl()
	if c := n.deps.Control; c != nil {
		defer c.Close()
	}
	if err == nil && (n.core.Peers.Len() > 0 || n.fleet != nil) {
		err = n.links.Open()
	}
	if err != nil {
		for _, u := range n.units {
			u.close()
		}
		for _, a := range n.deps.Attachments {
			_ = a.Close()
		}
		return fmt.Errorf("nic %s: %w", n.cfg.NIC.Name, err)
	}
	var threads, core, accepting sync.WaitGroup
	n.http.ctx = ctx
	n.http.begin(httpServers(n.cfg, n.API, n.warnings))
	if n.deps.Begin != nil {
		n.deps.Begin()
	}
	for i, u := range n.units {
		u.ports.Serve()
		threads.Go(func() {
			defer n.records.tape(i).End() // also by a panic: what led to it is then in the recording
			u.thread.Run()
		})
	}
	core.Go(func() { n.core.Run(n.clock, &n.links) })
	if n.deps.Control != nil {
		n.control = control.ServeOn(n.deps.Control, n)
	}
	for _, a := range n.deps.Attachments {
		accepting.Go(func() { n.accept(a) })
	}
	for _, u := range n.units {
		accepting.Go(func() { n.fitter.always(u, ctx.Done()) })
	}
	accepting.Go(func() { n.records.watchCapture(ctx, n.EndCapture) })
	accepting.Go(func() { n.records.watchTapes(ctx) })
	if n.fleet != nil {
		n.fleet.api = n.API
		accepting.Go(func() { n.fleet.run(ctx) })
	}
	n.log.Info("running", "host", n.cfg.NIC.Host, "uplink", n.units[0].uplink.Name(), "address", n.cfg.Uplink.Described(), "functions", n.units.functions(), "shards", len(n.units))
	close(n.ready)
	<-ctx.Done()
	// From the outside in: guests, attachments, peers, shards, core.
	n.sessions.CloseAll()
	for _, a := range n.deps.Attachments {
		_ = a.Close()
	}
	accepting.Wait()
	n.reload.Lock() // no reload starts other HTTP servers any more
	n.http.stop()
	n.http.serving.Wait()
	n.reload.Unlock()
	n.farewell()
	if n.control != nil {
		_ = n.control.Close()
	}
	n.links.close()
	for _, u := range n.units {
		u.thread.Halt()
	}
	threads.Wait()
	n.records.closeTapes()
	n.core.Halt()
	core.Wait()
	for _, u := range n.units {
		u.Inbox().Stop()
	}
	for _, u := range n.units { // until now each may have been woken by any other
		u.close()
	}
	n.core.Stop()
	n.lines.Flush(farewellTime)
	return nil
}

// farewellTime is how long a stopping NIC waits for peers to confirm that connections have ended.
const farewellTime = 500 * time.Millisecond

// farewell waits until reachable peers know that our connections have ended.
func (n *NIC) farewell() {
	for end := time.Now().Add(farewellTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		waiting := false
		if err := n.core.Do(func(falcon.Time) { waiting = n.core.Manager.Disconnecting() }); err != nil || !waiting {
			return
		}
	}
}

// listenControl opens the control socket, unless the caller did or there is to be none.
func (n *NIC) listenControl() error {
	if n.cfg.Control == "" || n.deps.Control != nil {
		return nil
	}
	l, err := control.Listen(n.cfg.Control)
	if err == nil {
		n.deps.Control = l
	}
	return err
}

// accept serves the guests of one attachment.
func (n *NIC) accept(a Attachment) {
	for {
		conn, err := a.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			n.guestLog("guest not accepted", "attachment", a.Addr(), "err", err)
			time.Sleep(acceptPause) // keeps errors caused from outside from making this a busy loop
			continue
		}
		from := guest.Key{Attachment: a.Addr(), CID: conn.Identity().CID}
		stream := guest.NewStream(conn, guest.StreamConfig{
			NIC: n.guestNIC(), Sessions: &n.sessions, Attachment: a.Name, From: from, Strict: n.cfg.NIC.Strict, Log: n.guestLog,
		})
		if !n.sessions.Start(stream, from, spareSessions+n.units.functions(), stream.Serve) {
			n.guestLog("guest refused", "attachment", a.Addr(), "guest", guest.Name(conn.Identity()), "reason", "too many sessions, or stopping")
			_ = conn.Close()
		}
	}
}

const (
	acceptPause   = 10 * time.Millisecond
	spareSessions = 16 // of one guest beyond one per function: streams before their hello
)

// guestNIC returns what gives drivers their functions.
func (n *NIC) guestNIC() guestNIC {
	return guestNIC{units: n.units, shardOf: n.shardOf, memory: &n.memory, limited: n.limited, clock: n.clock}
}

// guestLog logs what a guest caused. It is rate limited.
func (n *NIC) guestLog(msg string, args ...any) {
	n.limited.Line(n.clock(), slog.LevelInfo, msg, args...)
}
