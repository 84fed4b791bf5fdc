package fleet

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/settings"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// errUnknownHost is returned for a host that has no grant.
func errUnknownHost(v *directory.View, name string) error {
	return fmt.Errorf("unknown host %s; the fleet's hosts are %s", name, strings.Join(v.Names(), ", "))
}

func allowCommand() *cobra.Command {
	var f folder
	var drop bool
	cmd := &cobra.Command{
		Use: "allow NAME TENANT[:ADDRESS] ...", Short: "change what a host may have",
		Long: `Allows a host more addresses, or with --drop fewer. A tenant without an address stands
for any of its addresses that no other host is granted or has. What a host has and may
no longer have, its peers drop at once, with the connections.`,
		Example: "  vnic fleet allow rack1 1:192.168.100.22 2\n  vnic fleet allow --drop rack1 2",
		Args:    cli.Arguments(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := parseAllowed(args[1:])
			if err != nil {
				return err
			}
			var g directory.Grant
			err = f.with(cmd, userOperator, func(ctx context.Context, k *clientv3.Client) (err error) {
				g, err = f.changeGrant(ctx, k, args[0], func(v *directory.View, g *directory.Grant, there bool) error {
					if !there {
						return errUnknownHost(v, args[0])
					}
					if g.Revoked {
						return fmt.Errorf("host %s is revoked: vnic fleet grant %[1]s lets it in again", args[0])
					}
					for _, a := range list {
						if !drop {
							g.Add(a)
							continue
						}
						had := allowedText(g)
						if g.Drop(a); allowedText(g) == had {
							return fmt.Errorf("%s is not granted %v; it may have %s", args[0], a, had)
						}
					}
					return nil
				})
				return err
			})
			if err != nil {
				return err
			}
			return f.print(cmd, g, "%s: may have %s\n", args[0], allowedText(&g))
		},
	}
	cmd.Flags().BoolVar(&drop, "drop", false, "take these from what the host may have")
	f.flags(cmd.Flags())
	return cmd
}

func allowedText(g *directory.Grant) string {
	if g.Revoked {
		return "nothing"
	}
	var list []string
	for _, t := range g.Allow {
		if len(t.Addresses) == 0 {
			list = append(list, fmt.Sprintf("%d:any", t.Tenant))
		}
		for _, a := range t.Addresses {
			list = append(list, directory.Address{Tenant: t.Tenant, Addr: a}.String())
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ",")
}

func revokeCommand() *cobra.Command {
	var f folder
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "revoke a host: its links, connections and certificate end",
		Long: `Revokes a host. Every NIC ends its link, connections, tunnels and keys with the host
when it hears of it, and takes none of its certificates any more; etcd no longer knows
it, and its tokens end. To let it in again: vnic fleet grant.`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := f.with(cmd, userRoot, func(ctx context.Context, k *clientv3.Client) error { return f.revoke(ctx, k, args[0]) })
			if err != nil {
				return err
			}
			return f.print(cmd, map[string]any{"name": args[0], "revoked": true}, "%s: revoked\n", args[0])
		},
	}
	f.flags(cmd.Flags())
	return cmd
}

func (f *folder) revoke(ctx context.Context, k *clientv3.Client, name string) error {
	_, err := f.changeGrant(ctx, k, name, func(v *directory.View, g *directory.Grant, there bool) error {
		if !there {
			return errUnknownHost(v, name)
		}
		*g = directory.Grant{Allow: []directory.Allowed{}, Revoked: true}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.dropTokens(ctx, k, name); err != nil {
		return err
	}
	if _, err := k.UserDelete(ctx, userHost+name); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("its grant is revoked, and it is still a user of etcd: %w", err)
	}
	if _, err := k.Delete(ctx, directory.HostKey(f.is.Prefix, name)); err != nil {
		return err
	}
	return f.revokeCertificates(ctx, k, name)
}

// dropTokens deletes the tokens of a host that were not used: they would be good again when the host is let
// in again.
func (f *folder) dropTokens(ctx context.Context, k *clientv3.Client, name string) error {
	got, err := k.Get(ctx, f.tokenKey(""), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range got.Kvs {
		var t issued
		if json.Unmarshal(kv.Value, &t) != nil || t.Name != name || t.Used {
			continue
		}
		if _, err := k.Delete(ctx, string(kv.Key)); err != nil {
			return err
		}
	}
	return nil
}

// revokeCertificates adds a host's certificates to the list of those that are revoked, also those that were
// renewed and have not ended, and keeps each until it is over and its entry with it.
func (f *folder) revokeCertificates(ctx context.Context, k *clientv3.Client, name string) error {
	got, err := k.Get(ctx, f.signedPrefix(name), clientv3.WithPrefix())
	if err != nil || len(got.Kvs) == 0 {
		return err
	}
	for some := range slices.Chunk(got.Kvs, mostOps) {
		var puts []clientv3.Op
		for _, kv := range some {
			cert, err := certificateOf(string(kv.Value))
			if err != nil {
				return err
			}
			puts = append(puts, clientv3.OpPut(f.revokedKey(cert), string(kv.Value)))
		}
		if _, err := k.Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	return f.changeAuthority(ctx, k, a, func(*directory.Authority) error { return nil },
		clientv3.OpDelete(directory.CertKey(f.is.Prefix, name)), clientv3.OpDelete(f.signedPrefix(name), clientv3.WithPrefix()))
}

func (f *folder) revokedKey(c *x509.Certificate) string {
	return fmt.Sprintf("%s%x", f.revokedPrefix(), c.SerialNumber)
}

func (f *folder) revokedPrefix() string { return directory.Aside(f.is.Prefix) + "revoked/" }

// revoked returns the certificates that were revoked and may not be over.
func (f *folder) revoked(ctx context.Context, k *clientv3.Client) (list []*x509.Certificate, err error) {
	r, err := k.Get(ctx, f.revokedPrefix(), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range r.Kvs {
		if c, err := certificateOf(string(kv.Value)); err == nil && f.revokedKey(c) == string(kv.Key) {
			list = append(list, c)
		}
	}
	return list, nil
}

const moveLong = `Moves a function with its addresses to another host: FUNCTION is HOST/pf0.vf1 or
TENANT:ADDRESS. The new host gives tenant, address and MAC to its function of the same
number, or that of --as, which must have no address, and enables it. As soon as it says so,
all other hosts send to the new place, and the command returns. Half a second later the
old host disables its function and empties it.

If the new host cannot take the function, or does not within --wait, nothing has changed:
the old host still has it, and the command says why.

Plain IP goes on: a TCP connection lives, if its end does. RDMA connections end cleanly,
and programs connect again, to the same address. Settings that the new function needs,
such as a port or a guest, are given by --set, as for vnic vf set.`

func moveCommand() *cobra.Command {
	var f folder
	var as string
	var pairs []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "move FUNCTION HOST", Short: "move a function with its addresses to another host", Long: moveLong, Args: cli.Arguments(2, 2),
		Example: "  vnic fleet move rack1/pf0.vf1 rack2\n  vnic fleet move 1:192.168.100.21 rack2 --as pf0.vf4 --set guest=unix:bare",
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := parseSettings(pairs)
			if err != nil {
				return err
			}
			if as != "" {
				if _, err := pfvf.ParseID("h0." + as); err != nil {
					return cli.Usagef("--as %q: write it as pf0.vf2", as)
				}
			}
			if wait < time.Second {
				return cli.Usagef("--wait %s: the new host needs some time, at least 1s", wait)
			}
			var move directory.Move
			f.wait = wait
			err = f.with(cmd, userOperator, func(ctx context.Context, k *clientv3.Client) (err error) {
				move, err = f.move(ctx, k, args[0], args[1], as, set)
				return err
			})
			if err != nil {
				return err
			}
			return f.print(cmd, move, "%d:%s: from %s to %s/%s\n", move.Tenant, move.Addresses[0], move.From, args[1], move.Function)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "`function` of the new host, as pf0.vf2 (default: the same number)")
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Second, "time that the new host has to take the function")
	cmd.Flags().StringArrayVar(&pairs, "set", nil, "`KEY=VALUE`, a setting of the function there, as for vnic vf set; again for more")
	f.flags(cmd.Flags())
	return cmd
}

// parseSettings reads what --set says. A NIC would say only in its own status what it cannot set, when
// the function is nowhere.
func parseSettings(pairs []string) (map[string]string, error) {
	set := map[string]string{}
	some := (&config.Config{}).DefaultVF(0, 1)
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, cli.Usagef("--set %q: write KEY=VALUE, as guest=unix:bare", pair)
		}
		if slices.Contains([]string{"tenant", "address", "mac"}, key) {
			return nil, cli.Usagef("--set %s: the function has its own, which it keeps; leave it out", key)
		}
		if err := settings.Set(&some, key, value); err != nil {
			return nil, cli.Usagef("--set %s: %v", key, err)
		}
		set[key] = value
	}
	return set, nil
}

// checkFree returns an error if a function of a host has addresses that are not those of the one that moves
// there: it would lose them.
func checkFree(h *directory.Host, to string, move *directory.Move) error {
	for _, f := range h.Functions {
		if f.Name == move.Function && len(f.Addresses) > 0 && (f.Tenant != move.Tenant || !slices.Equal(f.Addresses, move.Addresses)) {
			return fmt.Errorf("%s/%s is in use: it has %v; name another function of %s by --as", to, f.Name, directory.Address{Tenant: f.Tenant, Addr: f.Addresses[0]}, to)
		}
	}
	return nil
}

// move moves a function by one transaction on both grants, and waits until the new host has it.
func (f *folder) move(ctx context.Context, k *clientv3.Client, what, to, as string, set map[string]string) (move directory.Move, err error) {
	for began := time.Now(); ; {
		v, _, err := f.view(ctx, k)
		if err != nil {
			return move, err
		}
		from, fn, err := find(v, what)
		if err != nil {
			return move, err
		}
		if from == to {
			return move, fmt.Errorf("%s is already at %s", what, to)
		}
		source, was, err := f.readGrant(ctx, k, from)
		if err != nil {
			return move, err
		}
		target, is, err := f.readGrant(ctx, k, to)
		switch {
		case err != nil:
			return move, err
		case is == 0:
			return move, errUnknownHost(v, to)
		case target.Revoked:
			return move, fmt.Errorf("host %s is revoked", to)
		case v.Host(to) == nil:
			return move, fmt.Errorf("host %s has no record: its NIC does not run, or is cut off from etcd", to)
		}
		move = directory.Move{Function: fn.Name, MAC: fn.MAC, Tenant: fn.Tenant, Addresses: fn.Addresses, From: from, Moving: true, Set: set}
		if as != "" {
			move.Function = as
		}
		if err := checkFree(v.Host(to), to, &move); err != nil {
			return move, err
		}
		if move.Among(v.Host(to).Functions) && time.Since(began) < f.wait {
			// The function was there, and that host has not yet said that it has left. Whoever reads that now
			// would take it for the answer to this move, and the host that has the function would give it up.
			time.Sleep(20 * time.Millisecond)
			continue
		}
		m := &moving{folder: f, k: k, to: to, move: &move}
		for _, o := range target.Moves {
			if o.Moving && o.Function == move.Function && !m.same(o) && len(o.Addresses) > 0 && target.Named(directory.Address{Tenant: o.Tenant, Addr: o.Addresses[0]}) {
				return move, fmt.Errorf("%s/%s is to have %v, which moves there from %s; name another function of %s by --as", to, o.Function, directory.Address{Tenant: o.Tenant, Addr: o.Addresses[0]}, o.From, to)
			}
		}
		for _, a := range fn.Addresses {
			at := directory.Address{Tenant: fn.Tenant, Addr: a}
			if source.Named(at) {
				source.Drop(at)
				m.dropped = append(m.dropped, at)
			}
			if !target.Named(at) {
				target.Add(at)
				m.added = append(m.added, at)
			}
		}
		source.Moves, m.replaced[0] = without(source.Moves, m.same)
		target.Moves, m.replaced[1] = without(target.Moves, func(o directory.Move) bool { return m.same(o) || o.Function == move.Function })
		target.Moves = append(target.Moves, move)
		done, err := k.Txn(ctx).If(f.grantIs(from, was), f.grantIs(to, is)).Then(f.putGrant(from, source), f.putGrant(to, target)).Commit()
		if err != nil {
			return move, err
		}
		if done.Succeeded {
			m.at = done.Header.Revision
			err = m.finish(ctx)
			return move, err
		}
	}
}

// without returns a list without some moves, and these.
func without(list []directory.Move, some func(directory.Move) bool) (rest, those []directory.Move) {
	for _, o := range list {
		if some(o) {
			those = append(those, o)
		} else {
			rest = append(rest, o)
		}
	}
	return rest, those
}

func (f *folder) grantIs(name string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(directory.GrantKey(f.is.Prefix, name)), "=", revision)
}

func (f *folder) putGrant(name string, g directory.Grant) clientv3.Op {
	return clientv3.OpPut(directory.GrantKey(f.is.Prefix, name), directory.Encode(g))
}

// moving is a move that is under way.
type moving struct {
	*folder
	k        *clientv3.Client
	to       string
	move     *directory.Move
	at       int64               // revision at which it began
	dropped  []directory.Address // what it took from the grant of the host that has the function
	added    []directory.Address // what it added to the grant of the new host
	replaced [2][]directory.Move // what it took from the moves of the two
}

// same reports whether another move is of the same function.
func (m *moving) same(o directory.Move) bool {
	return o.Tenant == m.move.Tenant && slices.Equal(o.Addresses, m.move.Addresses)
}

// finish waits until the new host has the function; then the old one has lost it for good. If the new one
// cannot take it, what the move changed is changed back. Others may change the same grants meanwhile, as another
// move to that host does, so that this leaves alone all that is not of this move.
func (m *moving) finish(ctx context.Context) error {
	why, err := m.await(ctx)
	if err != nil {
		return err
	}
	for {
		source, was, err := m.readGrant(ctx, m.k, m.move.From)
		if err != nil {
			return err
		}
		target, is, err := m.readGrant(ctx, m.k, m.to)
		if err != nil {
			return err
		}
		record, taken, err := m.taken(ctx)
		if err != nil {
			return err
		}
		if taken {
			why = "" // after all
		}
		i := slices.IndexFunc(target.Moves, func(o directory.Move) bool {
			return m.same(o) && o.Moving && o.Function == m.move.Function && o.From == m.move.From
		})
		if why != "" && (i < 0 || source.Revoked) {
			return fmt.Errorf("%s: %s. Somebody has changed the grants meanwhile: look with vnic fleet functions", m.to, why)
		}
		unchanged, then := []clientv3.Cmp{m.grantIs(m.to, is)}, []clientv3.Op{}
		switch {
		case why != "":
			target.Moves = append(slices.Delete(target.Moves, i, i+1), m.replaced[1]...)
			source.Moves = append(source.Moves, m.replaced[0]...)
			for _, at := range m.added {
				target.Drop(at)
			}
			for _, at := range m.dropped {
				source.Add(at)
			}
			// Not if the new host says at this moment that it has the function.
			unchanged = append(unchanged, m.grantIs(m.move.From, was), clientv3.Compare(clientv3.ModRevision(directory.HostKey(m.is.Prefix, m.to)), "=", record))
			then = append(then, m.putGrant(m.move.From, source), m.putGrant(m.to, target))
		case i >= 0:
			target.Moves[i].Moving = false
			then = append(then, m.putGrant(m.to, target))
		}
		done, err := m.k.Txn(ctx).If(unchanged...).Then(then...).Commit()
		switch {
		case err != nil:
			return err
		case !done.Succeeded:
			continue
		case why != "":
			return fmt.Errorf("%s: %s. %s still has it", m.to, why, m.move.From)
		}
		m.move.Moving = false
		return nil
	}
}

// taken reports whether the new host's record has the function, and the record's revision; 0: there is none.
func (m *moving) taken(ctx context.Context) (revision int64, has bool, err error) {
	r, err := m.k.Get(ctx, directory.HostKey(m.is.Prefix, m.to))
	if err != nil || len(r.Kvs) == 0 {
		return 0, false, err
	}
	h, err := directory.ParseHost(r.Kvs[0].Value)
	return r.Kvs[0].ModRevision, err == nil && m.move.Among(h.Functions), nil
}

// await waits for the record of the new host to have the function, and returns why it has not.
func (m *moving) await(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.wait)
	defer cancel()
	key := directory.HostKey(m.is.Prefix, m.to)
	r, err := m.k.Get(ctx, key)
	if err != nil {
		return "", err
	}
	if len(r.Kvs) > 0 {
		if done, why := m.says(r.Kvs[0].Value, r.Kvs[0].ModRevision > m.at); done || why != "" {
			return why, nil
		}
	}
	for w := range m.k.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithRev(r.Header.Revision+1)) {
		for _, e := range w.Events {
			if e.Type == clientv3.EventTypeDelete {
				continue
			}
			if done, why := m.says(e.Kv.Value, true); done || why != "" {
				return why, nil
			}
		}
		if err := w.Err(); err != nil && ctx.Err() == nil {
			return "", err
		}
	}
	return fmt.Sprintf("it has not taken %s within %s", m.move.Function, m.wait), nil
}

// says reports whether the new host's record has the function, or why it does not take it.
func (m *moving) says(record []byte, since bool) (done bool, why string) {
	h, err := directory.ParseHost(record)
	if err != nil {
		return false, "" // the next one may be better
	}
	if m.move.Among(h.Functions) {
		return true, ""
	}
	if since { // what it said before was about another move
		why = h.Problems[m.move.Function]
	}
	return false, why
}

// find returns the host that has a function, and the function. A function that was moved and that its
// new host could not take is that host's, so that it can be moved on.
func find(v *directory.View, what string) (host string, fn directory.Function, err error) {
	name, function, byName := strings.Cut(what, "/")
	var at directory.Address
	if !byName {
		if at, err = directory.ParseAddress(what); err != nil {
			return "", fn, cli.Usagef("%q: write HOST/pf0.vf1 or TENANT:ADDRESS", what)
		}
	}
	peers, _ := v.Decide()
	for _, p := range peers {
		for _, f := range v.Host(p.Name).Functions {
			named := byName && p.Name == name && f.Name == function
			addressed := !byName && f.Tenant == at.Tenant && slices.Contains(f.Addresses, at.Addr) && slices.Contains(p.Addresses, at)
			if !named && !addressed {
				continue
			}
			f.Addresses = slices.DeleteFunc(slices.Clone(f.Addresses), func(a netip.Addr) bool {
				return !slices.Contains(p.Addresses, directory.Address{Tenant: f.Tenant, Addr: a})
			})
			if len(f.Addresses) == 0 {
				return "", fn, fmt.Errorf("%s/%s has no address that it may have", p.Name, f.Name)
			}
			return p.Name, f, nil
		}
	}
	for _, to := range v.Names() {
		g := v.Grant(to)
		if g == nil {
			continue
		}
		for _, m := range g.Moves {
			named := byName && to == name && m.Function == function
			addressed := !byName && m.Tenant == at.Tenant && slices.Contains(m.Addresses, at.Addr)
			if (named || addressed) && len(m.Addresses) > 0 && g.Named(directory.Address{Tenant: m.Tenant, Addr: m.Addresses[0]}) {
				return to, directory.Function{Name: m.Function, MAC: m.MAC, Tenant: m.Tenant, Addresses: m.Addresses}, nil
			}
		}
	}
	return "", fn, fmt.Errorf("no host has %s; vnic fleet functions lists them all", what)
}
