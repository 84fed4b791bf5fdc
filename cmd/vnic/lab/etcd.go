package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/cmlink"
)

// The hosts of a lab whose file says "directory: etcd" are a fleet (docs/fleet.md): they find each other by
// an etcd, which is at their switch. What an operator does for that by hand, up does by the same commands,
// since a client of etcd has to be in its namespace with all its threads:
//
//	NAME.etcd   etcd --config-file /run/vnic/lab/NAME/fleet/etcd-1.yaml
//	            vnic fleet watch --sign
//	            vnic fleet init, grant, join, allow, revoke
//
// Each host may have any address of the lab's tenants, so that machines go to another host by an edit of
// the file.

// etcdAddress is in the network of the hosts' own addresses, where no host is (labfile.MaxHosts).
const etcdAddress = "172.16.255.1"

// etcd is the etcd of a lab.
type etcd struct{ *labfile.Lab }

func (e *etcd) Space() string  { return space(e.Name, labfile.DirectoryEtcd) }
func (e *etcd) Folder() string { return filepath.Join(folder(e.Name), "fleet") } // the fleet's
func (e *etcd) Config() string { return filepath.Join(e.Folder(), "etcd-1.yaml") }
func (e *etcd) Log() string    { return filepath.Join(folder(e.Name), "etcd.log") }
func (e *etcd) URL() string    { return "https://" + etcdAddress + ":2379" }
func (e *etcd) Prefix() string { return "/vnic/" + e.Name }

// Keys returns the folder with a host's identity: a host joins with what is its own.
func (e *etcd) Keys(host string) string { return filepath.Join(e.Folder(), "keys", host) }

// isEtcd reports whether a name is that of the lab's etcd.
func (p *plan) isEtcd(name string) bool { return p.etcd != nil && name == labfile.DirectoryEtcd }

// checkEtcd returns an error if this machine cannot run the lab's etcd.
func (p *plan) checkEtcd() error {
	if p.etcd == nil {
		return nil
	}
	if _, err := exec.LookPath("etcd"); err != nil {
		return errors.New(`directory: there is no program "etcd"; install it (Debian: etcd-server), or leave directory out`)
	}
	return nil
}

// makeNetwork makes etcd's namespace and its cable to the hosts' switch. If they are made again, etcd has
// the MAC address that hosts still know.
func (e *etcd) makeNetwork() error {
	_ = ip(e.Name, "link del dev etcd") // as for a host
	mtu := e.Links[0].MTU
	if err := makeSpace(e.Space(), disableIPv6,
		fmt.Sprintf("link add cable address 02:00:00:00:ff:01 mtu %d type veth peer name etcd mtu %d netns %s", mtu, mtu, e.Name),
		fmt.Sprintf("addr add %s/16 dev cable", etcdAddress),
		"link set dev cable up"); err != nil {
		return err
	}
	return ip(e.Name, "link set dev etcd master sw0 up")
}

func (e *etcd) shape() string { return fmt.Sprintf("etcd, MTU %d", e.Links[0].MTU) }

// command returns a command that runs where etcd is. vnic fleet finds the fleet's folder there.
func (e *etcd) command(ctx context.Context, argv ...string) *exec.Cmd {
	return userCommand(ctx, e.Space(), cli.FleetVariable+"="+e.Folder(), argv...)
}

// fleet runs a command of vnic fleet.
func (e *etcd) fleet(ctx context.Context, words ...string) error {
	out, err := e.command(ctx, append([]string{program, "fleet"}, words...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("vnic fleet %s: %w\n%s\n%s", strings.Join(words, " "), err, strings.TrimSpace(string(out)), lastLines(e.Log()))
	}
	return nil
}

// member is the command line of etcd.
func (e *etcd) member() []string { return []string{"etcd", "--config-file", e.Config()} }

// pid returns the process that has a command line; 0: there is none.
func (e *etcd) pid(argv []string) int {
	for _, p := range processes([]string{e.Space()})[e.Space()] {
		if slices.Equal(p.argv, argv) {
			return p.pid
		}
	}
	return 0
}

// startDaemon starts a process that outlives this one, if it does not run.
func (e *etcd) startDaemon(log string, argv ...string) error {
	if e.pid(argv) != 0 {
		return nil
	}
	out, _, err := logTo(e.Space(), "watch", log)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = start(e.Space(), nil, out, nil, argv...)
	return err
}

// startFleet makes the fleet and starts etcd, if that is not done, and lets the hosts in.
func (b *builder) startFleet(ctx context.Context) error {
	e := b.etcd
	b.out.now("etcd")
	if _, err := os.Stat(filepath.Join(e.Folder(), "fleet.json")); err != nil { // init writes it last
		if err := errors.Join(os.RemoveAll(e.Folder()), e.fleet(ctx, "init", "--domain", e.Name, "--endpoint", e.URL(), "--prefix", e.Prefix())); err != nil {
			return err
		}
	}
	if err := e.startDaemon(e.Log(), e.member()...); err != nil {
		return err
	}
	if err := e.fleet(ctx, "init"); err != nil { // waits for etcd
		return err
	}
	if err := e.startDaemon(filepath.Join(folder(e.Name), "etcd.signer.log"), program, "fleet", "watch", "--sign", "--dir", e.Folder()); err != nil {
		return err
	}
	return b.admit(ctx)
}

// granted returns the hosts that are in the fleet, each with the tenants that it may have.
func (e *etcd) granted(ctx context.Context) (map[string][]string, error) {
	var list []struct{ Name, State, Allowed string }
	out, err := output(e.command(ctx, program, "fleet", "hosts", "--json"))
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("vnic fleet hosts: %w", err)
	}
	granted := map[string][]string{}
	for _, h := range list {
		if h.State == "revoked" {
			continue
		}
		granted[h.Name] = nil
		for a := range strings.SplitSeq(h.Allowed, ",") {
			if tenant, ok := strings.CutSuffix(a, ":any"); ok {
				granted[h.Name] = append(granted[h.Name], tenant)
			}
		}
	}
	return granted, nil
}

// admit lets the lab's hosts into the fleet, and puts those out that the file has not any more. Each host
// may have the tenants of the file, and no others.
func (b *builder) admit(ctx context.Context) error {
	e := b.etcd
	granted, err := e.granted(ctx)
	if err != nil {
		return err
	}
	var tenants, allow []string
	for _, t := range b.Tenants {
		n := fmt.Sprint(b.state.Numbers.Tenants[t.Name])
		tenants, allow = append(tenants, n), append(allow, "--allow", n)
	}
	joined, left := 0, 0
	for name := range granted {
		if b.host(name) == nil {
			if err := errors.Join(e.fleet(ctx, "revoke", name), os.RemoveAll(e.Keys(name))); err != nil {
				return err
			}
			left++
		}
	}
	for i, h := range b.hosts {
		b.out.now("fleet: %d of %d hosts are in", i, len(b.hosts))
		may := granted[h.Name]
		if _, err := cmlink.Load(h.Keys(), h.Name); err != nil {
			token := filepath.Join(folder(b.Name), h.Name+".token")
			if err := errors.Join(
				os.RemoveAll(h.Keys()), // half of it may be there
				e.fleet(ctx, append([]string{"grant", h.Name, "--token", token}, allow...)...),
			); err != nil {
				return err
			}
			if err := e.fleet(ctx, "join", "--token", token, "--dir", h.Keys()); err != nil {
				return err
			}
			if err := os.Remove(token); err != nil {
				return err
			}
			may = tenants
			joined++
		}
		for _, change := range []struct {
			words   []string
			tenants []string
		}{
			{[]string{"allow", h.Name}, without(tenants, may)},
			{[]string{"allow", "--drop", h.Name}, without(may, tenants)},
		} {
			if len(change.tenants) > 0 {
				if err := e.fleet(ctx, append(change.words, change.tenants...)...); err != nil {
					return err
				}
			}
		}
	}
	if joined+left > 0 {
		b.out.step("fleet: %d hosts have joined, %d have left", joined, left)
	}
	return nil
}

// without returns those of a list that are not in another.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

func (e *etcd) status() *etcdStatus {
	s := &etcdStatus{State: "down", PID: e.pid(e.member()), URL: e.URL(), Folder: e.Folder(), Netns: e.Space()}
	if s.PID != 0 {
		s.State = "up"
	}
	return s
}
