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

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
)

// Attachment is a way for guests to reach the NIC, with the name that
// functions of the configuration refer to ("" for those known by their guests'
// context ids).
type Attachment struct {
	Name string
	queues.Attachment
}

// Deps are what a NIC is given. A NIC takes over Uplink, Attachments and
// Capture: Run closes them, and NewNIC closes them when it fails.
type Deps struct {
	Uplink      tap.Port               // nil: a TAP as the configuration says
	TAPs        tap.Keeper             // of the uplink's TAP and the ports'; nil: they go with the NIC
	Guests      ports.Guests           // ports in the memory of guests; nil: there are none
	Control     net.Listener           // of the control API, somebody else's; nil: one of its own as the configuration says
	Supervisor  *controller.Supervisor // nil: none
	Pulses      []thread.Pulse         // of the shards' threads, in order; nobody watches others
	Settings    settings.Store         // of functions, beyond the configuration; nil: they go with the NIC
	Attachments []Attachment           // listening already
	Identity    *cmlink.Identity       // nil: loaded from cm.identity, if there are peers
	Capture     *capture.Capture       // nil: as the configuration says
	Clock       func() int64           // ns, monotonic; nil: the system's
	Rand        io.Reader              // nil: the system's; master keys and sequence numbers come from it
	Log         *slog.Logger           // nil: none
}

// NIC is one emulated NIC: shards with their threads, the sessions of its
// guests, the link to its peers and the control API. Make it with NewNIC, then
// Run it once.
type NIC struct {
	*controller.API

	cfg      *config.Config
	deps     Deps
	log      *slog.Logger
	lines    loglimit.Queue // of log
	limited  *loglimit.Log
	clock    func() int64
	core     *controller.Core
	units    []*unit // by shard
	mail     map[uint8]*controller.PeerMail
	link     *cmlink.Link
	control  *control.Server
	keyLog   *security.KeyLog // nil: none
	sessions guest.Sessions
	memory   controller.GuestMemory
	fitting  sync.Mutex

	settings *settings.Memory
	warnings *controller.Warnings
	ready    chan struct{}
}

// Version of the program, set by it for the control API.
var Version = "dev"

var _ control.Provider = (*NIC)(nil)

// NewNIC builds a NIC from a checked configuration. It opens what Deps lacks.
func NewNIC(cfg *config.Config, deps Deps) (*NIC, error) {
	n, err := newNIC(cfg, deps)
	if err != nil {
		closeDeps(&deps)
		return nil, fmt.Errorf("nic %s: %w", cfg.NIC.Name, err)
	}
	return n, nil
}

func newNIC(cfg *config.Config, deps Deps) (*NIC, error) {
	n := &NIC{cfg: cfg, deps: deps, log: deps.Log, clock: deps.Clock, mail: map[uint8]*controller.PeerMail{}, ready: make(chan struct{})}
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
	if len(cfg.Peers) > 0 && n.deps.Identity == nil {
		if n.deps.Identity, err = cmlink.Load(cfg.CM.Identity, cfg.NIC.Host); err != nil {
			return nil, err
		}
	}
	n.settings = settings.NewMemory(deps.Settings)
	if err = n.newShards(); err != nil {
		return nil, err
	}
	if err = n.openDevices(); err != nil {
		n.closeOpened(&deps)
		return nil, err
	}
	n.recallPorts()
	c := controller.Config{
		Host: cfg.NIC.Host, Name: cfg.NIC.Name, Version: Version, Started: time.Now(), Shards: n.asked(), Core: n.core, Links: n,
		Supervisor: deps.Supervisor, Warnings: n.warnings, Settings: n.settings, Fitter: n, Counters: n.countRest, WallOffset: n.wallOffset, Log: n.log,
	}
	n.API = controller.NewAPI(c)
	return n, nil
}

// newShard makes a shard, and joins it and the core.
func newShard(i int, cfg *config.Config, core *controller.Core, log *slog.Logger) (*shard.Shard, error) {
	line := core.Line(i)
	s, err := shard.New(i, cfg, line, log)
	if err != nil {
		return nil, err
	}
	orders := s.Orders()
	line.Serve(inbox.NewMail(s.Inbox(), func(_ *shard.Shard, now falcon.Time, o controller.Order) { o(orders, now) }).Send)
	return s, nil
}

// sources are where the devices of ports come from.
func (n *NIC) sources() ports.Sources { return ports.Sources{TAPs: n.deps.TAPs, Guests: n.deps.Guests} }

// newShards makes the core and the shards.
func (n *NIC) newShards() (err error) {
	n.core, err = controller.NewCore(controller.CoreConfig{
		NIC: n.cfg, Shards: n.cfg.NIC.Shards, Home: n.home, Rand: n.deps.Rand, Log: n.limited.Line,
	})
	if err != nil {
		return err
	}
	n.recall()
	var shards []*shard.Shard
	for i := range n.cfg.NIC.Shards {
		s, err := newShard(i, n.cfg, n.core, n.log)
		if err != nil {
			return err
		}
		s.UseClock(n.clock)
		n.units = append(n.units, &unit{Shard: s})
		shards = append(shards, s)
	}
	shard.Join(shards)
	return nil
}

// openDevices opens what the shards are served by.
func (n *NIC) openDevices() (err error) {
	if err = n.openUplink(); err != nil {
		return err
	}
	n.openRecords()
	for i, u := range n.units {
		if u.ports, err = ports.Open(u.Ports(), n.sources(), n.clock, n.log); err != nil {
			return err
		}
		if err = n.newThread(i, u); err != nil {
			return err
		}
	}
	return nil
}

// closeOpened closes what NewNIC itself opened.
func (n *NIC) closeOpened(given *Deps) {
	for _, u := range n.units {
		u.close()
	}
	if n.deps.Uplink == nil {
		given.Uplink = nil // was the units'
	} else if given.Uplink == nil {
		_ = n.deps.Uplink.Close()
	}
	if given.Capture == nil && n.deps.Capture != nil {
		_ = n.deps.Capture.Close()
	}
	_ = n.keyLog.Close()
}

func closeDeps(d *Deps) {
	for _, a := range d.Attachments {
		_ = a.Close()
	}
	if d.Uplink != nil {
		_ = d.Uplink.Close()
	}
	if d.Capture != nil {
		_ = d.Capture.Close()
	}
	if d.Control != nil {
		_ = d.Control.Close()
	}
}

// monotonic returns a clock of ns since the machine started, so that a
// restarted process does not begin again at an old time.
func monotonic() func() int64 {
	var ts unix.Timespec
	base := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return func() int64 { return int64(time.Since(base)) + 1 }
	}
	offset := ts.Nano()
	return func() int64 { return offset + int64(time.Since(base)) }
}

// Ready is closed when Run has everything listening.
func (n *NIC) Ready() <-chan struct{} { return n.ready }

// Run serves until ctx is done, then takes everything down: guests are
// detached, connections closed, descriptors and goroutines gone when it
// returns. It may be called once.
func (n *NIC) Run(ctx context.Context) error {
	defer closeDeps(&Deps{Capture: n.deps.Capture, Control: n.deps.Control})
	defer n.keyLog.Close()
	if err := n.startLink(); err != nil {
		for _, u := range n.units {
			u.close()
		}
		for _, a := range n.deps.Attachments {
			_ = a.Close()
		}
		return fmt.Errorf("nic %s: %w", n.cfg.NIC.Name, err)
	}
	var threads, core sync.WaitGroup
	for _, u := range n.units {
		u.ports.Serve()
		threads.Go(u.thread.Run)
	}
	core.Go(func() { n.core.Run(n.clock, n.sendToPeer) })
	err := n.startControl()
	var accepting sync.WaitGroup
	if err == nil {
		for _, a := range n.deps.Attachments {
			accepting.Go(func() { n.accept(a) })
		}
		for _, u := range n.units {
			accepting.Go(func() { n.fitAlways(u, ctx.Done()) })
		}
		if n.cfg.Metrics.Listen.IsValid() {
			s := n.listenMetrics()
			accepting.Go(func() { n.keepMetrics(ctx, s) })
		}
		accepting.Go(func() { n.watchCapture(ctx) })
		n.log.Info("running", "host", n.cfg.NIC.Host, "uplink", n.units[0].uplink.Name(), "address", n.cfg.Uplink.Address.String(), "functions", n.functions(), "shards", len(n.units))
		close(n.ready)
		<-ctx.Done()
	}
	// From the outside in: no guests, no attachments, no peers, no shards, no core.
	n.sessions.CloseAll()
	for _, a := range n.deps.Attachments {
		_ = a.Close()
	}
	accepting.Wait()
	n.farewell()
	if n.control != nil {
		_ = n.control.Close()
	}
	for _, m := range n.mail {
		m.Close()
	}
	if n.link != nil {
		_ = n.link.Close()
	}
	for _, u := range n.units {
		u.thread.Halt()
	}
	threads.Wait()
	n.core.Halt()
	core.Wait()
	for _, u := range n.units {
		u.Inbox().Stop()
	}
	for _, u := range n.units { // each may have been woken by any until now
		u.close()
	}
	n.core.Stop()
	n.lines.Flush(farewellTime)
	if err != nil {
		return fmt.Errorf("nic %s: %w", n.cfg.NIC.Name, err)
	}
	return nil
}

// farewellTime is how long a stopping NIC waits for peers to confirm that
// connections have ended.
const farewellTime = 500 * time.Millisecond

// farewell lets the peers hear that our connections are gone, if they can be
// reached.
func (n *NIC) farewell() {
	for end := time.Now().Add(farewellTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		waiting := false
		if err := n.core.Do(func(falcon.Time) { waiting = n.core.Manager.Disconnecting() }); err != nil || !waiting {
			return
		}
	}
}

func (n *NIC) startControl() (err error) {
	if n.cfg.Control != "" {
		if n.deps.Control != nil {
			n.control = control.ServeOn(n.deps.Control, n)
		} else {
			n.control, err = control.Serve(n.cfg.Control, n)
		}
	}
	return err
}

// startLink begins to talk to the other NICs' connection managers.
func (n *NIC) startLink() error {
	if len(n.cfg.Peers) == 0 {
		return nil
	}
	c := cmlink.Config{Listen: n.cfg.CM.Listen.String(), Identity: n.deps.Identity, Log: n.log}
	for _, p := range n.cfg.Peers {
		n.mail[p.Host] = n.core.PeerMail(p.Host)
		c.Peers = append(c.Peers, cmlink.Peer{Host: p.Host, Addr: p.CM.String(), Identity: p.Identity})
	}
	var err error
	n.link, err = cmlink.New(c, linkHandler{n})
	return err
}

// Note implements controller.Links.
func (n *NIC) Note(host uint8) string {
	if n.link == nil {
		return ""
	}
	return n.link.Note(host)
}

// sendToPeer is called by the core's goroutine.
func (n *NIC) sendToPeer(host uint8, msg []byte) {
	if n.link == nil {
		return
	}
	// A message that cannot be sent is lost with the link; the connection
	// manager hears of it as PeerDown.
	_ = n.link.Send(host, msg)
}

// linkHandler passes what happens on the links to the core.
type linkHandler struct{ n *NIC }

func (h linkHandler) PeerUp(host uint8) {
	h.n.log.Info("peer up", "host", host)
	h.n.mail[host].Up()
}

func (h linkHandler) PeerDown(host uint8, reason error) {
	h.n.log.Info("peer down", "host", host, "reason", reason)
	if errors.Is(reason, cmlink.ErrRevoked) {
		h.n.mail[host].Revoked()
		return
	}
	h.n.mail[host].Down()
}

func (h linkHandler) Message(host uint8, msg []byte) {
	h.n.mail[host].Message(msg)
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
			time.Sleep(acceptPause) // nothing outside can make this a busy loop
			continue
		}
		from := guest.Key{Attachment: a.Addr(), CID: conn.Peer().CID}
		stream := guest.NewStream(conn, guest.StreamConfig{
			Desk: desk{n}, Sessions: &n.sessions, Attachment: a.Name, From: from, Strict: n.cfg.NIC.Strict, Log: n.guestLog,
		})
		if !n.sessions.Start(stream, from, spareSessions+n.functions(), stream.Serve) {
			n.guestLog("guest refused", "attachment", a.Addr(), "guest", guest.Name(conn.Peer()), "reason", "too many sessions, or stopping")
			_ = conn.Close()
		}
	}
}

const (
	acceptPause   = 10 * time.Millisecond
	spareSessions = 16 // of one guest, beside one per function: streams that have not said hello
)

// guestLog logs what a guest caused, within bounds.
func (n *NIC) guestLog(msg string, args ...any) {
	n.limited.Line(n.clock(), slog.LevelInfo, msg, args...)
}
