package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
)

// The authority of a fleet is replaced as that of a folder is (device/cmlink). What the folder has is put
// into etcd after each step, and NICs take it from there; each step looks first at whether all have taken
// what the one before changed.

const authorityLong = `Replaces the fleet's authority while hosts use it, in three steps:

  next     makes the next authority, which all hosts trust from then on beside the present
           one. Give etcd's members the new ca.pem and start them again, one by one.
  switch   has it sign from now on. Every host gets another certificate by itself, if
           somebody signs (vnic fleet watch --sign). Give etcd's members their new
           etcd-N.pem and etcd-N.key, which they take without a restart.
  drop     takes the old authority out. Give etcd's members the new ca.pem and start them
           again, one by one.

switch and drop look first whether each host, and each member of etcd, is as far as that,
and name those that are not. --without goes on without a host: it has to join anew.
A step that was interrupted is done again.`

func authorityCommand() *cobra.Command {
	authority := &cobra.Command{Use: "authority", Short: "replace the fleet's authority while hosts use it", Long: authorityLong}
	for _, step := range []struct {
		name, short, said string
		do                func(f *folder, ctx context.Context, k *clientv3.Client, without []string) error
	}{
		{"next", "make the next authority, which all trust beside the present one", "hosts trust both. Give etcd's members the new ca.pem and start them again, one by one; then: vnic fleet authority switch", (*folder).nextAuthority},
		{"switch", "have the next authority sign from now on", "hosts get other certificates. Give etcd's members their new etcd-N.pem and etcd-N.key; then: vnic fleet authority drop", (*folder).switchAuthority},
		{"drop", "take out all authorities but the one that signs", "hosts trust one authority. Give etcd's members the new ca.pem and start them again, one by one", (*folder).dropAuthority},
	} {
		var f folder
		var without []string
		cmd := &cobra.Command{
			Use: step.name, Short: step.short, Args: cli.Arguments(0, 0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				err := f.with(cmd, userRoot, func(ctx context.Context, k *clientv3.Client) error {
					if err := step.do(&f, ctx, k, without); err != nil {
						return err
					}
					return f.publish(ctx, k)
				})
				if err != nil {
					return err
				}
				list, err := cmlink.Describe(f.dir)
				if err != nil {
					return err
				}
				return f.print(cmd, list, "fleet %s: %s\n", f.is.Domain, step.said)
			},
		}
		if step.name != "next" {
			cmd.Flags().StringArrayVar(&without, "without", nil, "`host` that is left behind; again for more")
		}
		f.flags(cmd.Flags())
		authority.AddCommand(cmd)
	}
	return authority
}

func (f *folder) nextAuthority(ctx context.Context, k *clientv3.Client, _ []string) error {
	if next, err := cmlink.OpenNext(f.dir); err == nil && next != nil {
		roots, err := next.Roots()
		if err != nil {
			return err
		}
		is, _, err := f.readAuthority(ctx, k)
		if err != nil {
			return err
		}
		if is.Roots != string(roots) { // it was interrupted after this
			return nil
		}
	}
	return cmlink.Next(f.dir)
}

func (f *folder) switchAuthority(ctx context.Context, k *clientv3.Client, without []string) error {
	next, err := cmlink.OpenNext(f.dir)
	if err != nil {
		return err
	}
	if next != nil { // else it was interrupted after this
		if err := f.checkHosts(ctx, k, without, "it does not trust the next authority yet", func(h *directory.Host) bool {
			return slices.Contains(h.Authorities, next.Serial())
		}); err != nil {
			return err
		}
		cert, key, err := next.Issue(cmlink.Subject{Common: userRoot, Life: cmlink.ClockSkew})
		if err != nil {
			return err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return err
		}
		roots, err := f.roots()
		if err != nil {
			return err
		}
		if err := f.checkMembers(ctx, etcd.TLS(pair, roots), "it does not trust the next authority: give it the new ca.pem and start it again"); err != nil {
			return err
		}
	}
	if err := cmlink.Switch(f.dir); err != nil {
		return err
	}
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	return f.certificates(a, true)
}

func (f *folder) dropAuthority(ctx context.Context, k *clientv3.Client, without []string) error {
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	if err := f.checkHosts(ctx, k, without, "its certificate is of the authority that would be dropped", func(h *directory.Host) bool {
		return h.Authority == a.Serial()
	}); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(f.path(userRoot+".pem"), f.path(userRoot+".key"))
	if err != nil {
		return err
	}
	if err := f.checkMembers(ctx, etcd.TLS(pair, a.Pool()), "its certificate is of the authority that would be dropped: give it its new etcd-N.pem and etcd-N.key"); err != nil {
		return err
	}
	return cmlink.Drop(f.dir)
}

// checkHosts returns an error that names the hosts that are not ready, but for those that are left behind.
func (f *folder) checkHosts(ctx context.Context, k *clientv3.Client, without []string, why string, ready func(h *directory.Host) bool) error {
	v, _, err := f.view(ctx, k)
	if err != nil {
		return err
	}
	var behind []string
	for _, name := range v.Names() {
		g := v.Grant(name)
		in := g != nil && !g.Revoked && v.Certificate(name) != "" && !slices.Contains(without, name)
		if h := v.Host(name); in && (h == nil || !ready(h)) {
			behind = append(behind, name)
		}
	}
	if len(behind) > 0 {
		return fmt.Errorf("%s: %s. Wait for it, see why by vnic fleet status there, or go on without it (--without %[1]s)", strings.Join(behind, ", "), why)
	}
	return nil
}

// checkMembers returns an error that names a member of etcd that cannot be spoken to in a way.
func (f *folder) checkMembers(ctx context.Context, c *tls.Config, why string) error {
	for _, e := range f.is.Endpoints {
		u, err := url.Parse(e)
		if err == nil {
			err = etcd.Shake(ctx, u.Host, c)
		}
		if err != nil {
			return fmt.Errorf("etcd at %s: %s (%w)", e, why, err)
		}
	}
	return nil
}

// publish has the fleet trust the authorities of the folder.
func (f *folder) publish(ctx context.Context, k *clientv3.Client) error {
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	roots, err := a.Roots()
	if err != nil {
		return err
	}
	return f.changeAuthority(ctx, k, a, func(is *directory.Authority) error {
		is.Roots = string(roots)
		is.Signature, err = a.SignRoots(roots)
		return err
	})
}

// readAuthority returns what the fleet trusts, and the revision of it.
func (f *folder) readAuthority(ctx context.Context, k *clientv3.Client) (is directory.Authority, revision int64, err error) {
	r, err := k.Get(ctx, directory.AuthorityKey(f.is.Prefix))
	if err != nil {
		return is, 0, err
	}
	if len(r.Kvs) == 0 {
		return is, 0, errors.New("the fleet has no authority: vnic fleet init")
	}
	is, err = directory.ParseAuthority(r.Kvs[0].Value)
	return is, r.Kvs[0].ModRevision, err
}

// changeAuthority changes what the fleet trusts, together with some more. The list of revoked certificates
// is signed anew, by the authority that signs now, as what is kept of them has it.
func (f *folder) changeAuthority(ctx context.Context, k *clientv3.Client, a *cmlink.Authority, change func(is *directory.Authority) error, more ...clientv3.Op) error {
	key := directory.AuthorityKey(f.is.Prefix)
	for {
		revoked, err := f.revoked(ctx, k)
		if err != nil {
			return err
		}
		is, revision, err := f.readAuthority(ctx, k)
		if err != nil {
			return err
		}
		was := is
		if err := change(&is); err != nil {
			return err
		}
		dropped, err := a.Dropped([]byte(was.Roots), was.Signature)
		if err != nil {
			return err
		}
		if is.Revoked != "" || len(revoked) > 0 {
			list, err := a.Revoke([]byte(is.Revoked), dropped, revoked...)
			if err != nil {
				return err
			}
			is.Revoked = string(list)
		}
		then := append(slices.Clone(more), clientv3.OpPut(key, directory.Encode(is)))
		revokes := cmlink.Revokes([]byte(is.Revoked))
		for _, c := range revoked {
			if !revokes(c) && len(then) < mostOps { // others the next time
				then = append(then, clientv3.OpDelete(f.revokedKey(c)))
			}
		}
		done, err := k.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(then...).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}
