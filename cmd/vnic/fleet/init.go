package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/files"
)

// startTime is how long etcd may take to start.
const startTime = 20 * time.Second

// operatorLife is how long certificates of etcd and of operators are good.
const operatorLife = 10 * 365 * 24 * time.Hour

const initLong = `Makes a folder with what a fleet needs: its authority (ca.pem, ca.key), certificates
of etcd's members with a configuration for each (etcd-1.yaml …), and those of root and
of operators. Then it gives etcd its users and roles and turns its authentication on.

Run it twice: the first time it makes the folder and says how to start etcd, the second
time, with --dir alone, it sets etcd up. What is there is kept, what is missing is made.

Keep the folder where operators are. Of it, a member of etcd gets ca.pem, etcd-N.pem,
etcd-N.key and etcd-N.yaml; hosts get what they need by vnic fleet join.`

func initCommand() *cobra.Command {
	var f folder
	var endpoints []string
	var domain, prefix string
	cmd := &cobra.Command{
		Use: "init", Short: "make a fleet: its authority, certificates, and etcd's roles", Long: initLong, Args: cli.Arguments(0, 0),
		Example: "  vnic fleet init --domain lab --endpoint https://10.1.0.1:2379 --endpoint https://10.1.0.2:2379 --endpoint https://10.1.0.3:2379\n  vnic fleet init",
		RunE: func(cmd *cobra.Command, _ []string) error {
			isNew := f.open() != nil
			if !isNew {
				if err := f.checkUnchanged(cmd.Flags(), endpoints, domain, prefix); err != nil {
					return err
				}
			}
			if err := f.make(endpoints, domain, prefix); err != nil {
				return err
			}
			if isNew {
				return f.print(cmd, f.is, "%s", f.howToStart())
			}
			err := f.with(cmd, userRoot, f.setUp)
			for end := time.Now().Add(startTime); errors.Is(err, context.DeadlineExceeded) && time.Now().Before(end); {
				err = f.with(cmd, userRoot, f.setUp) // it may have been started just now
			}
			if err != nil {
				return fmt.Errorf("%w\n%s", err, f.howToStart())
			}
			return f.print(cmd, f.is, "fleet %s: %s in etcd at %s\n", f.is.Domain, f.is.Prefix, strings.Join(f.is.Endpoints, ", "))
		},
	}
	cmd.Flags().StringArrayVar(&endpoints, "endpoint", nil, "`URL` of a member of etcd, as https://10.1.0.1:2379; again for more")
	cmd.Flags().StringVar(&domain, "domain", "lab", "name shared by NICs that trust this authority")
	cmd.Flags().StringVar(&prefix, "prefix", "", "prefix of the fleet's keys (default: /vnic/ and the domain)")
	f.flags(cmd.Flags())
	return cmd
}

// checkUnchanged returns an error if flags name another fleet than the folder has.
func (f *folder) checkUnchanged(flags *pflag.FlagSet, endpoints []string, domain, prefix string) error {
	for _, o := range []struct{ name, is, wanted string }{
		{"domain", f.is.Domain, domain},
		{"prefix", f.is.Prefix, directory.Prefix(prefix)},
		{"endpoint", strings.Join(f.is.Endpoints, ", "), strings.Join(endpoints, ", ")},
	} {
		if flags.Changed(o.name) && o.wanted != o.is {
			return cli.Usagef("--%s: the fleet of folder %s has %s, and keeps it; leave --%[1]s out, or name another folder by --dir", o.name, f.dir, o.is)
		}
	}
	return nil
}

// make makes the files that are missing.
func (f *folder) make(endpoints []string, domain, prefix string) error {
	if f.open() != nil {
		if len(endpoints) == 0 {
			return cli.Usagef("%s is not a fleet's folder yet; name etcd's members, as --endpoint https://10.1.0.1:2379", f.dir)
		}
		for _, e := range endpoints {
			if err := etcd.CheckEndpoint(e, true); err != nil {
				return err
			}
		}
		if prefix == "" {
			prefix = "/vnic/" + domain
		}
		if !strings.HasPrefix(prefix, "/") || strings.Trim(prefix, "/") == "" {
			return cli.Usagef("--prefix %q: write it as /vnic/lab", prefix)
		}
		if err := cmlink.Init(f.dir, domain, nil); err != nil {
			return err
		}
		f.is = description{domain, directory.Prefix(prefix), endpoints}
	}
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	if err := f.certificates(a, false); err != nil {
		return err
	}
	for i := range f.is.Endpoints {
		if err := f.writeMember(i, memberName(i)); err != nil {
			return err
		}
	}
	return files.Replace(f.path("fleet.json"), []byte(directory.Encode(f.is)+"\n"), 0o644)
}

func memberName(i int) string { return fmt.Sprint("etcd-", i+1) }

// certificates makes those of operators and of etcd's members that are missing; anew: all of them.
func (f *folder) certificates(a *cmlink.Authority, anew bool) error {
	for _, user := range []string{userRoot, userOperator} {
		if err := f.issue(a, user, cmlink.Subject{Common: user, Life: operatorLife}, anew); err != nil {
			return err
		}
	}
	for i, e := range f.is.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			return err
		}
		if err := f.issue(a, memberName(i), cmlink.Subject{Common: memberName(i), At: u.Hostname(), Life: operatorLife}, anew); err != nil {
			return err
		}
	}
	return nil
}

// issue makes a certificate with its key, unless it is there and not to be made anew.
func (f *folder) issue(a *cmlink.Authority, name string, s cmlink.Subject, anew bool) error {
	if _, err := os.Stat(f.path(name + ".pem")); err == nil && !anew {
		return nil
	}
	cert, key, err := a.Issue(s)
	if err != nil {
		return err
	}
	return errors.Join(files.Replace(f.path(name+".key"), key, 0o600), files.Replace(f.path(name+".pem"), cert, 0o644))
}

// writeMember writes the configuration of a member of etcd.
func (f *folder) writeMember(i int, name string) error {
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return err
	}
	var cluster []string
	peer := func(i int) string {
		u, _ := url.Parse(f.is.Endpoints[i])
		port := 0
		_, _ = fmt.Sscan(u.Port(), &port)
		return fmt.Sprintf("https://%s:%d", bracketed(u.Hostname()), port+1)
	}
	for j := range f.is.Endpoints {
		cluster = append(cluster, fmt.Sprintf("etcd-%d=%s", j+1, peer(j)))
	}
	security := func(indent string) string {
		return fmt.Sprintf("%[1]scert-file: %[2]s.pem\n%[1]skey-file: %[2]s.key\n%[1]strusted-ca-file: %[3]s\n%[1]sclient-cert-auth: true\n", indent, filepath.Join(dir, name), filepath.Join(dir, "ca.pem"))
	}
	text := fmt.Sprintf(`# A member of the etcd of fleet %[1]s, made by vnic fleet init: etcd --config-file %[2]s.yaml
name: %[2]s
data-dir: %[3]s
listen-client-urls: %[4]s
advertise-client-urls: %[4]s
listen-peer-urls: %[5]s
initial-advertise-peer-urls: %[5]s
initial-cluster: %[6]s
initial-cluster-token: vnic-%[1]s
auto-compaction-mode: periodic
auto-compaction-retention: 1h
client-transport-security:
%[7]speer-transport-security:
%[7]s`, f.is.Domain, name, filepath.Join(dir, name+".data"), f.is.Endpoints[i], peer(i), strings.Join(cluster, ","), security("  "))
	return files.Replace(f.path(name+".yaml"), []byte(text), 0o644)
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func (f *folder) howToStart() string {
	text := "To start etcd, where its members are:\n"
	for i := range f.is.Endpoints {
		text += fmt.Sprintf("  etcd --config-file %s\n", f.path(fmt.Sprintf("etcd-%d.yaml", i+1)))
	}
	return text + fmt.Sprintf("then, again: vnic fleet init --dir %s\n", f.dir)
}

// setUp gives etcd its users and roles, and the fleet its authority.
func (f *folder) setUp(ctx context.Context, k *clientv3.Client) error {
	tree := span(f.is.Prefix)
	aside := span(directory.Aside(f.is.Prefix))
	roles := map[string][]permission{
		userRoot:     nil,
		userOperator: {{tree, readWrite}, {aside, readWrite}},
		userJoin:     {{span(f.requestsKey("")), readWrite}, {span(f.answersKey("")), read}},
	}
	for _, user := range []string{userRoot, userOperator, userJoin} {
		if err := setUser(ctx, k, user, user, roles[user]); err != nil {
			return err
		}
	}
	if _, err := k.AuthEnable(ctx); err != nil {
		return err
	}
	roots, err := os.ReadFile(f.path("ca.pem"))
	if err != nil {
		return err
	}
	key := directory.AuthorityKey(f.is.Prefix)
	_, err = k.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, directory.Encode(directory.Authority{Roots: string(roots)}))).Commit()
	return err
}

// keys is a range of keys, or one key if it has no end.
type keys struct{ from, to string }

// span returns the keys that begin with a prefix.
func span(prefix string) keys { return keys{prefix, clientv3.GetPrefixRangeEnd(prefix)} }

type permission struct {
	keys
	kind clientv3.PermissionType
}

const (
	read      = clientv3.PermissionType(clientv3.PermRead)
	readWrite = clientv3.PermissionType(clientv3.PermReadWrite)
)

// setUser makes a user that is known by its certificate, with a role, as far as they are missing.
func setUser(ctx context.Context, k *clientv3.Client, user, role string, may []permission) error {
	if _, err := k.RoleAdd(ctx, role); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		return err
	}
	for _, p := range may {
		if _, err := k.RoleGrantPermission(ctx, role, p.from, p.to, p.kind); err != nil {
			return err
		}
	}
	if _, err := k.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true}); err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		return err
	}
	_, err := k.UserGrantRole(ctx, user, role)
	return err
}

// hostRole is what a host may do: read the fleet, and write its own record and its request for another
// certificate.
func (f *folder) hostRole(name string) []permission {
	return []permission{
		{span(f.is.Prefix), read},
		{keys{directory.HostKey(f.is.Prefix, name), ""}, readWrite},
		{keys{directory.RenewKey(f.is.Prefix, name), ""}, readWrite},
	}
}
