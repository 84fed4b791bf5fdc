package fleet

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/directory"
)

// host is an entry of `vnic fleet hosts`.
type host struct {
	Name      string              `json:"name"`
	State     string              `json:"state"` // here, away, revoked, refused, new
	Underlay  string              `json:"underlay,omitempty"`
	CM        string              `json:"cm,omitempty"`
	Version   string              `json:"version,omitempty"`
	Addresses int                 `json:"addresses"` // how many it has
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
			h.State, h.Addresses = "here", len(peers[i].Addresses)
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
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", h.Name, h.State, h.Underlay, h.CM, h.Version, h.Addresses, h.Allowed, strings.Join(no, "; "))
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
