package device

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/underlay"
)

// fleet is a NIC's part in a fleet: it takes its peers from the directory, and tells the directory of
// its functions.
//
//	directory's goroutine: View ─▶ apply: functions that were moved away are given up
//	                                      peers ─▶ API.Follow ─▶ the core
//	                                      functions that were moved here are taken
//	announcing goroutine:  functions have changed ─▶ the host's record
//
// Both wait for the core; neither is waited for.
type fleet struct {
	cfg    *config.Config
	api    *controller.API
	links  *links
	log    *slog.Logger
	client *etcd.Client
	id     string // of this run of the NIC
	told   chan struct{}
	due    chan struct{} // another certificate may be needed

	taking sync.Mutex // while a function is taken: what becomes of it is not known yet

	leaving leaving // of the directory's goroutine

	mu       sync.Mutex
	self     directory.Self
	refused  []directory.Refusal
	problems map[string]string // what could not be done, by what it was about
	failed   map[string]string // of these, functions that were moved here
	hosts    int
	peers    int
	count    struct{ refused, notDone uint64 }
	renewing *ecdsa.PrivateKey // key of the certificate that was asked for
	keyPEM   []byte            // the same
}

// newFleet returns the fleet of a NIC that has a directory.
func newFleet(cfg *config.Config, l *links, log *slog.Logger) *fleet {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	f := &fleet{cfg: cfg, links: l, log: log, id: hex.EncodeToString(id), told: make(chan struct{}, 1), due: make(chan struct{}, 1), leaving: leaving{}, problems: map[string]string{}, self: directory.Self{Name: cfg.CM.Name}}
	e := cfg.Directory.Etcd
	f.client = etcd.New(etcd.Config{Endpoints: e.Endpoints, Prefix: e.Prefix, Name: cfg.CM.Name, TLS: l.clientTLS, Log: log, Changed: f.apply})
	return f
}

// announced says that the NIC's functions have changed. It never waits: the core calls it.
func (f *fleet) announced() {
	if f == nil {
		return
	}
	select {
	case f.told <- struct{}{}:
	default:
	}
}

// run takes part in the fleet until ctx is done.
func (f *fleet) run(ctx context.Context) {
	var announcing sync.WaitGroup
	announcing.Go(func() {
		for {
			select {
			case <-f.told:
				f.announce(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	announcing.Go(func() { renewals(ctx, f.untilRenewal, f.due, f.askForRenewal) })
	f.announced()
	if err := f.client.Run(ctx); err != nil { // the configuration's check knows the same rules
		f.log.Error("directory: not used", "err", err)
	}
	announcing.Wait()
}

// announce writes the NIC's functions to its record, and has the peers looked at again: a NIC has
// those that share a tenant with it.
func (f *fleet) announce(ctx context.Context) {
	f.taking.Lock()
	offered, held, err := f.api.Offered()
	f.taking.Unlock()
	if err != nil {
		return // the NIC ends
	}
	f.mu.Lock()
	f.self.Functions, f.self.Held = offered, held
	failed := f.failed
	f.mu.Unlock()
	is := f.links.identity()
	f.client.Record(ctx, directory.Host{
		Instance: f.id, Underlay: place(&f.cfg.Uplink).String(), CM: f.cfg.CM.Listen.String(), Version: Version, Functions: offered,
		Authority: is.Authority(), Authorities: is.Authorities(), Problems: failed,
	})
	f.client.Look(ctx, f.apply)
}

// place returns where peers send packets to the NIC.
func place(u *config.Uplink) netip.AddrPort {
	if u.Type == config.UplinkUDP {
		return u.Listen
	}
	return netip.AddrPortFrom(u.Own(), underlay.SealedPort)
}

// apply makes the NIC's peers and functions what the directory says.
func (f *fleet) apply(v *directory.View) {
	f.mu.Lock()
	self := f.self
	f.mu.Unlock()
	problems := map[string]string{}
	gone, staying, wait := f.leaving.due(v.Outgoing(&self), time.Now())
	if wait > 0 {
		time.AfterFunc(wait, f.announced) // which looks again
	}
	for _, o := range staying {
		for _, a := range o.Addresses {
			self.Leaving = append(self.Leaving, directory.Address{Tenant: o.Tenant, Addr: a})
		}
	}
	for _, moved := range gone {
		if err := f.api.GiveUp(moved.Name); err != nil {
			problems[moved.Name] = fmt.Sprintf("it was moved to another host and is not given up: %v", err)
			continue
		}
		f.log.Info("directory: a function was moved to another host", "function", moved.Name)
		self.GiveUp(&moved)
	}
	peers, refused := v.Peers(&self)
	leftOut, err := f.api.Follow(peers)
	if err != nil {
		problems["peers"] = err.Error()
	}
	for name, err := range leftOut {
		problems["peer "+name] = err.Error()
	}
	failed := map[string]string{}
	incoming := v.Incoming(&self)
	if len(incoming) > 0 {
		f.awaitLinks(peers)
	}
	for _, m := range incoming {
		if err := f.take(&m); err != nil {
			failed[m.Function] = err.Error()
			problems[m.Function] = fmt.Sprintf("it was moved here from %s and is not taken: %v", m.From, err)
			continue
		}
		f.log.Info("directory: a function was moved here", "function", m.Function, "from", m.From, "tenant", m.Tenant, "address", m.Addresses[0])
	}
	f.mu.Lock()
	if !maps.Equal(f.failed, failed) {
		f.failed = failed
		f.announced() // whoever moves the function waits for it
	}
	f.mu.Unlock()
	if err := errors.Join(f.takeCertificate(v), f.takeAuthority(v)); err != nil {
		problems["certificates"] = err.Error()
	}
	f.report(v, len(peers)-len(leftOut), refused, problems)
}

// leaveAfter is how long a host keeps a function that another host has taken: some of its peers hear of
// the move a little later than it does, and send to it until then.
const leaveAfter = 500 * time.Millisecond

// leaving holds when another host took each function that this NIC still serves, by name.
type leaving map[string]time.Time

// due returns which of the functions that other hosts have are to be given up now, and which stay for a
// while; the first of these are due after wait.
func (l leaving) due(moved []directory.Function, now time.Time) (gone, staying []directory.Function, wait time.Duration) {
	maps.DeleteFunc(l, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(moved, func(o directory.Function) bool { return o.Name == name })
	})
	for _, o := range moved {
		if _, ok := l[o.Name]; !ok {
			l[o.Name] = now
		}
		remains := l[o.Name].Add(leaveAfter).Sub(now)
		if remains <= 0 {
			gone = append(gone, o)
			continue
		}
		staying = append(staying, o)
		if wait == 0 || remains < wait {
			wait = remains
		}
	}
	return gone, staying, wait
}

// linkTime is how long a function that moves here waits for links to the peers.
const linkTime = time.Second

// awaitLinks waits for the links to new peers: as soon as this NIC says that it has a function, they
// send to it. It waits for linkTime at most, as a peer may not answer.
func (f *fleet) awaitLinks(peers []config.Peer) {
	ctx, cancel := context.WithTimeout(context.Background(), linkTime)
	defer cancel()
	for ctx.Err() == nil {
		list, err := f.api.Peers(ctx)
		if err != nil {
			return // the NIC ends
		}
		up := map[string]bool{}
		for i := range list {
			up[list[i].Name] = list[i].Up
		}
		if !slices.ContainsFunc(peers, func(p config.Peer) bool { return !up[p.Name] }) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// take gives a function that was moved here its tenant, address and MAC, and enables it. If that fails,
// nothing is left of it: the host that it comes from goes on with it.
func (f *fleet) take(m *directory.Move) error {
	f.taking.Lock()
	defer f.taking.Unlock()
	set := map[string]string{"tenant": fmt.Sprint(m.Tenant), "address": m.Addresses[0].String()}
	if m.MAC != "" {
		set["mac"] = m.MAC
	}
	maps.Copy(set, m.Set)
	err := f.change(m.Function, control.FunctionChange{Action: "enable", Set: set})
	if err == nil {
		return nil
	}
	if _, held, stopped := f.api.Offered(); stopped == nil && slices.Contains(held, directory.Address{Tenant: m.Tenant, Addr: m.Addresses[0]}) {
		err = errors.Join(err, f.api.GiveUp(m.Function))
	}
	return err
}

func (f *fleet) change(function string, c control.FunctionChange) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c.Function = function
	_, err := f.api.ChangeFunction(ctx, c)
	return err
}

// report keeps what the status shows, and logs problems that are new.
func (f *fleet) report(v *directory.View, peers int, refused []directory.Refusal, problems map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(problems)) {
		if f.problems[what] != problems[what] {
			f.log.Warn("directory: not done", "what", what, "reason", problems[what])
			f.count.notDone++
		}
	}
	for _, r := range refused {
		if !slices.Contains(f.refused, r) {
			f.log.Warn("directory: a claim is not believed", "host", r.Host, "claim", r.What, "reason", r.Why)
			f.count.refused++
		}
	}
	f.hosts, f.peers, f.refused, f.problems = len(v.Names()), peers, refused, problems
}

// status describes the fleet as the NIC sees it.
func (f *fleet) status() control.Directory {
	st := f.client.Status()
	e := f.cfg.Directory.Etcd
	d := control.Directory{
		Kind: "etcd", Name: f.cfg.CM.Name, Endpoints: e.Endpoints, Prefix: directory.Prefix(e.Prefix), Watching: st.Watching, Revision: st.Revision, SinceMS: max(st.Now-st.Since, 0) / int64(time.Millisecond),
		Reading: st.Reading, Keeping: st.Keeping, Lists: st.Lists, Changes: st.Changes, Failures: st.Failures, Denied: st.Denied, Compactions: st.Compactions, LeasesLost: st.LeasesLost, Yields: st.Yields,
		Refused: []control.Refusal{}, Problems: []string{},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.Hosts, d.Peers = f.hosts, f.peers
	for _, r := range f.refused {
		d.Refused = append(d.Refused, control.Refusal{Host: r.Host, What: r.What, Why: r.Why})
	}
	for _, what := range slices.Sorted(maps.Keys(f.problems)) {
		d.Problems = append(d.Problems, what+": "+f.problems[what])
	}
	return d
}

// counters adds the counters of the fleet.
func (f *fleet) counters(to control.Counters) {
	if f == nil {
		return
	}
	st := f.client.Status()
	f.mu.Lock()
	c := counters.Directory{Stats: st.Stats, Watching: st.Watching, Hosts: f.hosts, Refused: f.count.refused, NotDone: f.count.notDone}
	f.mu.Unlock()
	counters.OfDirectory.Add(to, &c)
}

// Directory describes where the NIC's peers come from. It implements control.Provider.
func (n *NIC) Directory(ctx context.Context) (control.Directory, error) {
	if n.fleet == nil {
		list, err := n.Peers(ctx)
		return control.Directory{Kind: "static", Peers: len(list), Refused: []control.Refusal{}, Problems: []string{}}, err
	}
	return n.fleet.status(), nil
}
