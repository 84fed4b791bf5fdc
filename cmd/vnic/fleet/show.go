package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/metrics"
)

// host is an entry of `vnic fleet hosts`.
type host struct {
	Name      string              `json:"name"`
	State     string              `json:"state"` // here, away, revoked, refused, new
	Underlay  string              `json:"underlay,omitempty"`
	CM        string              `json:"cm,omitempty"`
	Version   string              `json:"version,omitempty"`
	Functions int                 `json:"functions"`
	Allowed   string              `json:"allowed"`
	Refused   []directory.Refusal `json:"refused,omitempty"`
}

func describe(v *directory.View) (list []host) {
	peers, refused := v.Decide()
	for _, name := range v.Names() {
		h := host{Name: name, State: "away"}
		for _, r := range refused {
			if r.Host == name {
				h.Refused = append(h.Refused, r)
			}
		}
		i := slices.IndexFunc(peers, func(p directory.Peer) bool { return p.Name == name })
		g, is := v.Grant(name), v.Host(name)
		if is != nil {
			h.Underlay, h.CM, h.Version = is.Underlay, is.CM, is.Version
		}
		switch {
		case g != nil && g.Revoked:
			h.State = "revoked"
		case i >= 0:
			h.State, h.Functions = "here", len(peers[i].Addresses)
		case is != nil:
			h.State = "refused"
		case g != nil && v.Certificate(name) == "":
			h.State = "new"
		}
		if g != nil {
			h.Allowed = allowedText(g)
		}
		list = append(list, h)
	}
	return list
}

func hostsCommand() *cobra.Command {
	var f folder
	cmd := &cobra.Command{
		Use: "hosts", Short: "the hosts of a fleet, what each may have, and what is refused",
		Long: `Lists the hosts of a fleet. STATE is here (its record is there), away (it has none: its NIC
does not run, or is cut off from etcd), new (it has not joined yet), refused (nothing of
its record is believed) or revoked.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []host
			err := f.with(cmd, userOperator, func(ctx context.Context, k *clientv3.Client) error {
				v, _, err := f.view(ctx, k)
				if err == nil {
					list = describe(v)
				}
				return err
			})
			if err != nil {
				return err
			}
			if f.json {
				return cli.PrintJSON(cmd.OutOrStdout(), append([]host{}, list...))
			}
			return cli.PrintTable(cmd.OutOrStdout(), func(w io.Writer) {
				fmt.Fprintln(w, "HOST\tSTATE\tUNDERLAY\tCM\tVERSION\tADDRESSES\tMAY HAVE\tREFUSED")
				for _, h := range list {
					var no []string
					for _, r := range h.Refused {
						no = append(no, strings.TrimPrefix(r.String(), h.Name+": "))
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", h.Name, h.State, h.Underlay, h.CM, h.Version, h.Functions, h.Allowed, strings.Join(no, "; "))
				}
			})
		},
	}
	f.flags(cmd.Flags())
	return cmd
}

// function is an entry of `vnic fleet functions`.
type function struct {
	Tenant   uint32 `json:"tenant"`
	Address  string `json:"address"`
	Host     string `json:"host"`
	Function string `json:"function"`
	MAC      string `json:"mac"`
}

func functionsCommand() *cobra.Command {
	var f folder
	cmd := &cobra.Command{
		Use: "functions", Short: "where each address of a fleet is", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := []function{}
			err := f.with(cmd, userOperator, func(ctx context.Context, k *clientv3.Client) error {
				v, _, err := f.view(ctx, k)
				if err != nil {
					return err
				}
				peers, _ := v.Decide()
				for _, p := range peers {
					for _, fn := range v.Host(p.Name).Functions {
						for _, a := range fn.Addresses {
							if at := (directory.Address{Tenant: fn.Tenant, Addr: a}); slices.Contains(p.Addresses, at) {
								list = append(list, function{fn.Tenant, a.String(), p.Name, fn.Name, fn.MAC})
							}
						}
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			if f.json {
				return cli.PrintJSON(cmd.OutOrStdout(), list)
			}
			return cli.PrintTable(cmd.OutOrStdout(), func(w io.Writer) {
				fmt.Fprintln(w, "TENANT\tADDRESS\tHOST\tFUNCTION\tMAC")
				for _, fn := range list {
					fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", fn.Tenant, fn.Address, fn.Host, fn.Function, fn.MAC)
				}
			})
		},
	}
	f.flags(cmd.Flags())
	return cmd
}

func statusCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use: "status", Short: "show how a NIC takes part in its fleet",
		Long: `Asks a running NIC about its fleet: whether it watches etcd and up to which revision, whether
its record is there, which claims of hosts it does not believe, and what it could not do.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := o.Client().Directory(cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, d, func(w io.Writer) { printStatus(w, &d) })
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

func printStatus(w io.Writer, d *control.Directory) {
	if d.Kind != "etcd" {
		fmt.Fprintf(w, "no fleet: the %d peers are those of the configuration and of vnic peer\n", d.Peers)
		return
	}
	since := (time.Duration(d.SinceMS) * time.Millisecond).Round(time.Second)
	fmt.Fprintf(w, "host\t%s\t%s at %s\n", d.Name, d.Prefix, strings.Join(d.Endpoints, ", "))
	if d.Watching {
		fmt.Fprintf(w, "watching\tfor %s\trevision %d; %d hosts, of which %d are peers\n", since, d.Revision, d.Hosts, d.Peers)
	} else {
		fmt.Fprintf(w, "not watching\tfor %s\t%s; %d peers, as last known\n", since, d.Reading, d.Peers)
	}
	if d.Keeping == "" {
		fmt.Fprintf(w, "record\tthere\t\n")
	} else {
		fmt.Fprintf(w, "record\tmissing\t%s\n", d.Keeping)
	}
	fmt.Fprintf(w, "so far\t\t%d lists, %d changes, %d failures, %d denied, %d compactions, %d leases lost, %d times another NIC of this name\n", d.Lists, d.Changes, d.Failures, d.Denied, d.Compactions, d.LeasesLost, d.Yields)
	for _, r := range d.Refused {
		fmt.Fprintf(w, "refused\t%s\t%s\n", r.Host, strings.TrimPrefix(directory.Refusal{What: r.What, Why: r.Why}.String(), ": "))
	}
	for _, p := range d.Problems {
		fmt.Fprintf(w, "not done\t\t%s\n", p)
	}
}

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
	next int64 // revision from which the tree is watched again; 0: the present one

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
	told := false
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errOthers) {
			continue
		}
		if !told {
			w.say(change{Error: etcd.Explain(err).Error()})
		}
		told = err != nil
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
	renew, err := w.k.Get(limited, directory.RenewKey(w.is.Prefix, ""), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range append(r.Kvs, renew.Kvs...) {
		w.handle(ctx, string(kv.Key), kv.Value)
	}
	w.watching.Store(true)
	defer w.watching.Store(false)
	leader := clientv3.WithRequireLeader(ctx)
	tree := w.k.Watch(leader, w.is.Prefix, clientv3.WithPrefix(), clientv3.WithRev(cmp.Or(w.next, r.Header.Revision+1)))
	w.next = 0
	aside := w.k.Watch(leader, directory.Aside(w.is.Prefix), clientv3.WithPrefix(), clientv3.WithRev(r.Header.Revision+1))
	for {
		var x clientv3.WatchResponse
		ok := false
		select {
		case x, ok = <-tree:
		case x, ok = <-aside:
		}
		if err := x.Err(); err != nil || !ok {
			return err
		}
		for _, e := range x.Events {
			key := string(e.Kv.Key)
			if strings.HasPrefix(key, w.is.Prefix) {
				c := change{Revision: e.Kv.ModRevision, Key: strings.TrimPrefix(key, w.is.Prefix), Gone: e.Type == clientv3.EventTypeDelete}
				if json.Unmarshal(e.Kv.Value, &c.Value) != nil && !c.Gone {
					c.Value = len(e.Kv.Value)
				}
				w.say(c)
			}
			if e.Type == clientv3.EventTypePut {
				w.handle(ctx, key, e.Kv.Value)
			}
			if key == directory.AuthorityKey(w.is.Prefix) {
				w.next = e.Kv.ModRevision + 1
			}
		}
		if w.next > 0 {
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
	if id, ok := strings.CutPrefix(key, w.requestsKey("")); ok {
		name, err = w.folder.sign(ctx, w.k, id, value, w.life)
	} else if host, ok := strings.CutPrefix(key, directory.RenewKey(w.is.Prefix, "")); ok {
		name, err = host, w.renew(ctx, host, value)
	} else {
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

// renew signs another certificate of a host that is in. Only the host itself could ask for it.
func (w *watcher) renew(ctx context.Context, name string, csr []byte) error {
	g, revision, err := w.readGrant(ctx, w.k, name)
	if err != nil {
		return err
	}
	if revision == 0 || g.Revoked {
		return fmt.Errorf("%s is not in the fleet", name)
	}
	cert, err := w.certify(name, csr, w.life)
	if err != nil {
		return err
	}
	then, err := w.giveCertificate(ctx, w.k, name, cert)
	if err != nil {
		return err
	}
	_, err = w.k.Txn(ctx).Then(append(then, clientv3.OpDelete(directory.RenewKey(w.is.Prefix, name)))...).Commit()
	return err
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
