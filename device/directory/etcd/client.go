package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Config is the configuration of a Client.
type Config struct {
	Endpoints []string
	Prefix    string
	Name      string             // of the host; "": it has no record, and only looks on
	TLS       func() *tls.Config // how to speak to etcd now; nil: without TLS
	Log       *slog.Logger

	// Changed is called when the view has changed. It may look at the view as long as it lasts.
	Changed func(v *directory.View)
}

// Client speaks to etcd for one NIC.
type Client struct {
	cfg     Config
	session *directory.Session
	etcd    *clientv3.Client
	clock   func() vtime.Time
	answers chan func(now vtime.Time) []directory.Ask
	again   chan struct{}
	unwatch context.CancelFunc
	watch   context.Context   // of the watch that runs
	told    string            // what was last logged
	options []grpc.DialOption // none, except in tests without sockets

	mu     sync.Mutex
	status Status
}

// Status describes a Client.
type Status struct {
	directory.State
	directory.Stats
	Now vtime.Time // by the clock of State.Since
}

const requestTime = 3 * time.Second

// New returns a client. It reads nothing before Run.
func New(c Config) *Client {
	base := time.Now()
	k := &Client{cfg: c, clock: func() vtime.Time { return int64(time.Since(base)) }, answers: make(chan func(vtime.Time) []directory.Ask, 64), again: make(chan struct{}, 1)}
	k.session = directory.NewSession(directory.Prefix(c.Prefix), c.Name, rand.Float64)
	k.cfg.Prefix = directory.Prefix(c.Prefix)
	if k.cfg.Log == nil {
		k.cfg.Log = slog.New(slog.DiscardHandler)
	}
	k.note(0)
	return k
}

// Status describes the client as of its last step.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.status
	st.Now = c.clock()
	return st
}

// Record sets what the host says of itself. It waits for Run until ctx is done.
func (c *Client) Record(ctx context.Context, h directory.Host) {
	c.post(ctx, func(vtime.Time) []directory.Ask { c.session.Record(h); return nil })
}

// Look calls f with the view, on Run's goroutine. It waits for that until ctx is done.
func (c *Client) Look(ctx context.Context, f func(v *directory.View)) {
	done := make(chan struct{})
	c.post(ctx, func(vtime.Time) []directory.Ask { defer close(done); f(c.session.View); return nil })
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Redial makes the client speak to etcd as Config.TLS says now.
func (c *Client) Redial() {
	select {
	case c.again <- struct{}{}:
	default:
	}
}

// Put writes a key. It may be called from any goroutine.
func (c *Client) Put(ctx context.Context, key, value string) error {
	k, err := c.dial()
	if err != nil {
		return err
	}
	defer k.Close()
	_, err = k.Put(ctx, key, value)
	return Explain(err)
}

func (c *Client) dial() (*clientv3.Client, error) {
	var t *tls.Config
	if c.cfg.TLS != nil {
		t = c.cfg.TLS()
	}
	return Dial(c.cfg.Endpoints, t, c.options...)
}

// Run speaks to etcd until ctx is done. Then the host's record is removed, if etcd answers soon.
func (c *Client) Run(ctx context.Context) error {
	var err error
	if c.etcd, err = c.dial(); err != nil {
		return err
	}
	asking, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		c.stopWatch()
		_ = c.etcd.Close()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := c.clock()
		c.ask(asking, c.session.Step(now))
		if c.session.Changed() && c.cfg.Changed != nil {
			c.cfg.Changed(c.session.View)
		}
		c.note(now)
		timer.Reset(time.Duration(c.session.Deadline(now) - c.clock()))
		select {
		case f := <-c.answers:
			c.ask(asking, f(c.clock()))
			c.drain(asking)
		case <-c.again:
			c.redial()
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for _, a := range c.session.End() {
		c.carryOut(asking, c.etcd, a)
	}
	return nil
}

// drain takes the answers that wait, so that what follows is done once for all.
func (c *Client) drain(ctx context.Context) {
	for {
		select {
		case f := <-c.answers:
			c.ask(ctx, f(c.clock()))
		default:
			return
		}
	}
}

func (c *Client) redial() {
	k, err := c.dial()
	if err != nil {
		c.cfg.Log.Warn("directory: the connection to etcd stays as it is", "err", err)
		return
	}
	c.stopWatch()
	_ = c.etcd.Close() // what is under way fails, and is tried again
	c.etcd = k
	c.session.Again(c.clock())
}

// note keeps the state for Status, and logs what has changed of it.
func (c *Client) note(now vtime.Time) {
	st := Status{c.session.State(), c.session.Stats(), now}
	c.mu.Lock()
	c.status = st
	c.mu.Unlock()
	said := ""
	if !st.Watching {
		said = st.Reading
	}
	if said == c.told || said == directory.NotRead {
		return
	}
	if said == "" {
		c.cfg.Log.Info("directory: the fleet is read from etcd", "revision", st.Revision)
	} else if c.told == "" {
		c.cfg.Log.Warn("directory: etcd is not reached, trying again", "err", said, "endpoints", c.cfg.Endpoints, "meanwhile", "the peers are those that were known last")
	}
	c.told = said
}

// post passes an answer to Run.
func (c *Client) post(ctx context.Context, f func(now vtime.Time) []directory.Ask) {
	select {
	case c.answers <- f:
	case <-ctx.Done():
	}
}

func (c *Client) ask(ctx context.Context, asks []directory.Ask) {
	for _, a := range asks {
		switch a.Kind {
		case directory.AskWatch:
			c.startWatch(ctx, a)
		case directory.AskUnwatch:
			c.stopWatch()
		case directory.AskProgress:
			k, watch := c.etcd, c.watch
			go func() {
				if err := k.RequestProgress(watch); err != nil {
					c.failed(ctx, a, err)
				}
			}()
		default:
			k := c.etcd
			go c.carryOut(ctx, k, a)
		}
	}
}

// carryOut makes one request and passes its answer on.
func (c *Client) carryOut(ctx context.Context, k *clientv3.Client, a directory.Ask) {
	limited, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s := c.session
	var err error
	switch a.Kind {
	case directory.AskList:
		var r *clientv3.GetResponse
		if r, err = k.Get(limited, c.cfg.Prefix, clientv3.WithPrefix()); err == nil {
			list := make([]directory.Record, 0, len(r.Kvs))
			for _, kv := range r.Kvs {
				list = append(list, record(kv))
			}
			c.post(ctx, func(now vtime.Time) []directory.Ask { return s.Listed(now, a, r.Header.Revision, list) })
		}
	case directory.AskLease:
		var r *clientv3.LeaseGrantResponse
		if r, err = k.Grant(limited, int64(directory.LeaseTTL/time.Second)); err == nil {
			c.post(ctx, func(now vtime.Time) []directory.Ask { return s.Leased(now, a, int64(r.ID)) })
		}
	case directory.AskPut:
		var r *clientv3.PutResponse
		if r, err = k.Put(limited, directory.HostKey(c.cfg.Prefix, c.cfg.Name), a.Value, clientv3.WithLease(clientv3.LeaseID(a.Lease))); err == nil {
			c.post(ctx, func(now vtime.Time) []directory.Ask { s.Kept(now, a, r.Header.Revision); return nil })
		}
	case directory.AskKeepAlive:
		if _, err = k.KeepAliveOnce(limited, clientv3.LeaseID(a.Lease)); err == nil {
			c.post(ctx, func(now vtime.Time) []directory.Ask { s.Kept(now, a, 0); return nil })
		}
	case directory.AskCancel:
		_, _ = k.Revoke(limited, clientv3.LeaseID(a.Lease))
	}
	if err != nil {
		c.failed(ctx, a, err)
	}
}

func (c *Client) failed(ctx context.Context, a directory.Ask, err error) {
	var t *tls.Config
	if c.cfg.TLS != nil {
		t = c.cfg.TLS()
	}
	err = sessionError(Why(ctx, err, c.cfg.Endpoints, t))
	c.post(ctx, func(now vtime.Time) []directory.Ask { c.session.Failed(now, a, err); return nil })
}

func (c *Client) stopWatch() {
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
}

// startWatch watches the fleet from a revision on.
func (c *Client) startWatch(ctx context.Context, a directory.Ask) {
	c.stopWatch()
	c.watch, c.unwatch = context.WithCancel(clientv3.WithRequireLeader(ctx))
	k, watch := c.etcd, c.watch
	go func() {
		changes := k.Watch(watch, c.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithRev(a.From), clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
		for w := range changes {
			if err := w.Err(); err != nil {
				c.failed(watch, a, err)
				return
			}
			if len(w.Events) == 0 {
				c.post(watch, func(now vtime.Time) []directory.Ask { c.session.Alive(now, a); return nil })
				continue
			}
			list := make([]directory.Record, 0, len(w.Events))
			for _, e := range w.Events {
				r := record(e.Kv)
				if e.Type == clientv3.EventTypeDelete {
					r.Value = nil
				}
				list = append(list, r)
			}
			c.post(watch, func(now vtime.Time) []directory.Ask { c.session.Watched(now, a, list); return nil })
		}
		c.failed(watch, a, errEnded)
	}()
}

var errEnded = errors.New("the watch has ended")

func record(kv *mvccpb.KeyValue) directory.Record {
	value := kv.Value
	if value == nil {
		value = []byte{}
	}
	return directory.Record{Key: string(kv.Key), Value: value, Created: kv.CreateRevision, Modified: kv.ModRevision}
}
