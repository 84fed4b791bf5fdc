package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
)

// Users of etcd, by the common name of their certificates. That of a host begins with userHost.
const (
	userRoot     = "root"
	userOperator = "operator"
	userJoin     = "join"
	userHost     = "host-"
)

// requestTime bounds what a command waits for etcd.
const requestTime = 10 * time.Second

// Command returns `vnic fleet`.
func Command() *cobra.Command {
	fleet := &cobra.Command{Use: "fleet", Short: "run hosts that find each other by etcd: let them in, say what each may have, move functions"}
	fleet.AddCommand(initCommand(), grantCommand(), joinCommand(), allowCommand(), revokeCommand(), moveCommand(), authorityCommand(), hostsCommand(), functionsCommand(), watchCommand(), statusCommand())
	return fleet
}

// folder is where an operator has the fleet's files.
type folder struct {
	dir  string
	json bool
	wait time.Duration // for a host, beside the time for etcd
	is   description
}

// description is what fleet.json holds.
type description struct {
	Domain    string   `json:"domain"`
	Prefix    string   `json:"prefix"`
	Endpoints []string `json:"endpoints"`
}

func (f *folder) flags(to *pflag.FlagSet) {
	to.StringVar(&f.dir, "dir", cmp.Or(os.Getenv(cli.FleetVariable), "fleet"), "the fleet's `folder`, made by vnic fleet init (default also: $"+cli.FleetVariable+")")
	cli.JSONFlag(to, &f.json)
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// open reads the folder's settings.
func (f *folder) open() error {
	b, err := os.ReadFile(f.path("fleet.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not a fleet's folder: make one with vnic fleet init, or name another with --dir", f.dir)
	}
	if err == nil {
		err = json.Unmarshal(b, &f.is)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.path("fleet.json"), err)
	}
	return nil
}

// tls returns how to speak to etcd with the certificate of one of the folder's users.
func (f *folder) tls(user string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.path(user+".pem"), f.path(user+".key"))
	if err != nil {
		return nil, fmt.Errorf("the certificate of %s: %w", user, err)
	}
	roots, err := f.roots()
	if err != nil {
		return nil, err
	}
	return etcd.TLS(pair, roots), nil
}

// roots returns the authorities of the folder.
func (f *folder) roots() (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	b, err := os.ReadFile(f.path("ca.pem"))
	if err != nil {
		return nil, err
	}
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s: no certificate in it", f.path("ca.pem"))
	}
	return roots, nil
}

// dial returns a client of etcd with the certificate of one of the folder's users.
func (f *folder) dial(user string) (*clientv3.Client, error) {
	c, err := f.tls(user)
	if err != nil {
		return nil, err
	}
	return etcd.Dial(f.is.Endpoints, c)
}

// with opens the folder and calls do with a client of etcd.
func (f *folder) with(cmd *cobra.Command, user string, do func(ctx context.Context, k *clientv3.Client) error) error {
	if err := f.open(); err != nil {
		return err
	}
	c, err := f.tls(user)
	if err != nil {
		return err
	}
	k, err := etcd.Dial(f.is.Endpoints, c)
	if err != nil {
		return err
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTime+f.wait)
	defer cancel()
	return etcd.Explain(etcd.Why(ctx, do(ctx, k), f.is.Endpoints, c))
}

// print writes an answer as JSON or as a line of text.
func (f *folder) print(cmd *cobra.Command, v any, format string, args ...any) error {
	if f.json {
		return cli.PrintJSON(cmd.OutOrStdout(), v)
	}
	fmt.Fprintf(cmd.OutOrStdout(), format, args...)
	return nil
}

// view reads the whole fleet.
func (f *folder) view(ctx context.Context, k *clientv3.Client) (*directory.View, int64, error) {
	r, err := k.Get(ctx, f.is.Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, err
	}
	v := directory.NewView(f.is.Prefix)
	for _, kv := range r.Kvs {
		v.Apply(0, directory.Record{Key: string(kv.Key), Value: kv.Value, Created: kv.CreateRevision, Modified: kv.ModRevision})
	}
	return v, r.Header.Revision, nil
}

// readGrant returns the grant of a host and the revision of it; 0: there is none.
func (f *folder) readGrant(ctx context.Context, k *clientv3.Client, name string) (g directory.Grant, revision int64, err error) {
	r, err := k.Get(ctx, directory.GrantKey(f.is.Prefix, name))
	if err != nil || len(r.Kvs) == 0 {
		return g, 0, err
	}
	g, err = directory.ParseGrant(r.Kvs[0].Value)
	return g, r.Kvs[0].ModRevision, err
}

// changeGrant reads the grant of a host, and writes it as change leaves it, together with some more. What is
// granted by name is granted to one host alone.
func (f *folder) changeGrant(ctx context.Context, k *clientv3.Client, name string, change func(v *directory.View, g *directory.Grant, there bool) error, more ...clientv3.Op) (g directory.Grant, err error) {
	for {
		v, _, err := f.view(ctx, k)
		if err != nil {
			return g, err
		}
		var revision int64
		if g, revision, err = f.readGrant(ctx, k, name); err != nil {
			return g, err
		}
		if err := change(v, &g, revision != 0); err != nil {
			return g, err
		}
		if err := checkUnique(v, name, &g); err != nil {
			return g, err
		}
		key := directory.GrantKey(f.is.Prefix, name)
		done, err := k.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(append(slices.Clone(more), clientv3.OpPut(key, directory.Encode(g)))...).Commit()
		if err != nil || done.Succeeded {
			return g, err
		}
	}
}

// checkUnique returns an error if what is granted to a host by name is granted to another one.
func checkUnique(v *directory.View, name string, g *directory.Grant) error {
	for _, t := range g.Allow {
		for _, a := range t.Addresses {
			for _, other := range v.Names() {
				o := v.Grant(other)
				if other == name || o == nil || o.Revoked {
					continue
				}
				at := directory.Address{Tenant: t.Tenant, Addr: a}
				if o.Named(at) {
					return fmt.Errorf("%s is granted to %s: move its function (vnic fleet move %s %s), or drop it there (vnic fleet allow --drop %s %s)", at, other, at, name, other, at)
				}
			}
		}
	}
	return nil
}
