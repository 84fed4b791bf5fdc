package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/metrics"
)

// change is a line of `vnic fleet watch`.
type change struct {
	Revision int64  `json:"revision"`
	Key      string `json:"key"`
	Gone     bool   `json:"gone,omitempty"`
	Value    any    `json:"value,omitempty"`
	Signed   string `json:"signed,omitempty"`  // host that got a certificate, or, with an error, did not
	Refused  uint64 `json:"refused,omitempty"` // requests that were refused so far
	Error    string `json:"error,omitempty"`
}

func watchCommand() *cobra.Command {
	var f folder
	var sign bool
	var life time.Duration
	var listen string
	cmd := &cobra.Command{
		Use: "watch", Short: "print what changes; with --sign, sign the certificates of hosts that join and renew",
		Long: `Prints each change of the fleet, until it is stopped: the revision, the key under the
fleet's prefix, and its value, or gone.

With --sign it also signs the certificates of hosts that join by a token, renews those of
hosts that are in, and prints for whom. Requests that it refuses are printed with the
reason, and counted. It needs ca.key for that. While nobody signs, hosts cannot join, and
those that are in go on until their certificates end.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			user := userOperator
			if sign {
				user = userRoot
			}
			if err := f.open(); err != nil {
				return err
			}
			w := &watcher{folder: &f, user: user, sign: sign, life: life, out: cmd.OutOrStdout()}
			if listen != "" {
				s, err := metrics.ServeValues(listen, w.metrics()...)
				if err != nil {
					return err
				}
				defer s.Close()
			}
			return w.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&sign, "sign", false, "sign for hosts that join and renew")
	cmd.Flags().DurationVar(&life, "life", hostLife, "how long the signed certificates are valid")
	cmd.Flags().StringVar(&listen, "metrics", "", "`address` at which Prometheus reads what was signed and refused, as 127.0.0.1:9471 (default: none)")
	f.flags(cmd.Flags())
	return cmd
}

type watcher struct {
	*folder
	user string
	k    *clientv3.Client // while it watches
	sign bool
	life time.Duration
	out  io.Writer
	next int64 // first revision of the tree that was not seen; 0: none was
	away bool  // it was said that etcd is not reached, or has ended the watch

	watching                  atomic.Bool
	signed, refused, failures atomic.Uint64
}

// metrics returns what Prometheus is told of the process that signs.
func (w *watcher) metrics() []metrics.Value {
	count := func(c *atomic.Uint64) func() float64 { return func() float64 { return float64(c.Load()) } }
	return []metrics.Value{
		{Name: "vnic_fleet_watching", Help: "1 while etcd is reached; 0: nobody is signed for.", Of: func() float64 {
			if w.watching.Load() {
				return 1
			}
			return 0
		}},
		{Name: "vnic_fleet_signed_total", Help: "Certificates that were signed, for hosts that join or renew.", Of: count(&w.signed)},
		{Name: "vnic_fleet_refused_total", Help: "Requests for a certificate that were refused.", Of: count(&w.refused)},
		{Name: "vnic_fleet_failures_total", Help: "Times that etcd was not reached, or ended the watch.", Of: count(&w.failures)},
	}
}

// run watches the tree and what is beside it, and begins anew whenever that ends, until ctx is done.
func (w *watcher) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errOthers) {
			continue
		}
		if !w.away {
			w.say(change{Error: etcd.Explain(err).Error()})
		}
		w.away = true
		w.failures.Add(1)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// watch watches until that fails, or the fleet has other authorities: then the folder has other
// certificates.
func (w *watcher) watch(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.k, err = w.dial(w.user); err != nil {
		return err
	}
	defer func() { _ = w.k.Close() }()
	limited, done := context.WithTimeout(ctx, requestTime)
	defer done()
	r, err := w.k.Get(limited, directory.Aside(w.is.Prefix), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	listed := r.Header.Revision
	renew, err := w.k.Get(limited, directory.RenewKey(w.is.Prefix, ""), clientv3.WithPrefix(), clientv3.WithRev(listed))
	if err != nil {
		return err
	}
	for _, kv := range append(r.Kvs, renew.Kvs...) {
		w.handle(ctx, string(kv.Key), kv.Value)
	}
	w.watching.Store(true)
	defer w.watching.Store(false)
	w.away = false
	return w.follow(ctx, listed)
}

// follow takes what changes after a list of what is asked for, and in the tree also what was not seen before it.
func (w *watcher) follow(ctx context.Context, listed int64) error {
	w.next = cmp.Or(w.next, listed+1)
	leader := clientv3.WithRequireLeader(ctx)
	tree := w.k.Watch(leader, w.is.Prefix, clientv3.WithPrefix(), clientv3.WithRev(w.next))
	aside := w.k.Watch(leader, directory.Aside(w.is.Prefix), clientv3.WithPrefix(), clientv3.WithRev(listed+1))
	for {
		var x clientv3.WatchResponse
		ok := false
		select {
		case x, ok = <-tree:
		case x, ok = <-aside:
		}
		switch err := x.Err(); {
		case x.CompactRevision >= w.next:
			err = fmt.Errorf("the changes of revisions %d to %d are missing: %w", w.next, x.CompactRevision, err)
			w.next = x.CompactRevision + 1
			return err
		case err != nil:
			return err
		case !ok:
			return errors.New("the watch has ended") // the client does not say why if it was read too slowly
		}
		others := false
		for _, e := range x.Events {
			key := string(e.Kv.Key)
			if strings.HasPrefix(key, w.is.Prefix) {
				c := change{Revision: e.Kv.ModRevision, Key: strings.TrimPrefix(key, w.is.Prefix), Gone: e.Type == clientv3.EventTypeDelete}
				if json.Unmarshal(e.Kv.Value, &c.Value) != nil && !c.Gone {
					c.Value = len(e.Kv.Value)
				}
				w.say(c)
				w.next = e.Kv.ModRevision + 1
			}
			if e.Type == clientv3.EventTypePut && e.Kv.ModRevision > listed {
				w.handle(ctx, key, e.Kv.Value)
			}
			others = others || key == directory.AuthorityKey(w.is.Prefix)
		}
		if others {
			return errOthers
		}
	}
}

var errOthers = errors.New("the fleet has other authorities")

// handle signs what a key asks for.
func (w *watcher) handle(ctx context.Context, key string, value []byte) {
	if !w.sign {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var name string
	var err error
	signed := true
	if id, ok := strings.CutPrefix(key, w.requestsKey("")); ok {
		name, err = w.folder.sign(ctx, w.k, id, value, w.life)
	} else if host, ok := strings.CutPrefix(key, directory.RenewKey(w.is.Prefix, "")); ok {
		name = host
		signed, err = w.renew(ctx, host, value)
	} else {
		return
	}
	if !signed && err == nil {
		return
	}
	c := change{Signed: name}
	if err != nil {
		c.Error, c.Refused = err.Error(), w.refused.Add(1)
	} else {
		w.signed.Add(1)
	}
	w.say(c)
}

// say prints a line.
func (w *watcher) say(c change) {
	if w.json {
		b, _ := json.Marshal(c)
		fmt.Fprintf(w.out, "%s\n", b)
		return
	}
	switch {
	case c.Signed != "" && c.Error != "":
		fmt.Fprintf(w.out, "%s: %s (%d refused so far)\n", c.Signed, c.Error, c.Refused)
	case c.Signed != "":
		fmt.Fprintf(w.out, "%s: signed a certificate\n", c.Signed)
	case c.Error != "":
		fmt.Fprintf(w.out, "trying again: %s\n", c.Error)
	case c.Gone:
		fmt.Fprintf(w.out, "%d %s gone\n", c.Revision, c.Key)
	default:
		b, _ := json.Marshal(c.Value)
		fmt.Fprintf(w.out, "%d %s %s\n", c.Revision, c.Key, b)
	}
}
