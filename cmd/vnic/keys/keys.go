package keys

import (
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/cmlink"
)

func Command() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "identities of the connection managers, and PSP keys"}
	var dir, domain string
	var asJSON bool
	initKeys := &cobra.Command{
		Use:   "init NAME [NAME ...]",
		Short: "make a certificate authority and one identity per NIC",
		Long: `Makes ca.pem, ca.key and host-NAME.pem, host-NAME.key for each NIC. A name is
cm.name of the NIC, which is its nic.host if left out: 1 to 63 of a-z, 0-9, - and .
A host needs ca.pem and its own pair; keep ca.key away from the hosts.
Run by root, it gives the pairs to the owner of the folder, and keeps ca.key.
Existing files are never overwritten.`,
		Example: "  vnic keys init --dir keys --domain lab 1 2\n  vnic keys init --dir keys --domain lab rack1-a rack1-b",
		Args:    names(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmlink.Init(dir, domain, args); err != nil {
				return err
			}
			return printIdentities(cmd, args, domain, dir, asJSON)
		},
	}
	initKeys.Flags().StringVar(&dir, "dir", "keys", "folder to write to")
	initKeys.Flags().StringVar(&domain, "domain", "lab", "name shared by NICs that trust this authority")
	cli.JSONFlag(initKeys.Flags(), &asJSON)
	keys.AddCommand(initKeys, addKeysCommand(), renewKeysCommand(), showKeysCommand(), revokeKeysCommand(), authorityCommand(), rotateKeysCommand())
	return keys
}

func addKeysCommand() *cobra.Command {
	var dir, domain string
	var asJSON bool
	add := &cobra.Command{
		Use:   "add NAME [NAME ...]",
		Short: "make identities for more NICs with the existing authority",
		Long: `Makes host-NAME.pem and host-NAME.key for each NIC, signed with ca.key of the
same folder. By default they get the domain of the existing identities.
An identity that exists is replaced by vnic keys renew.`,
		Example: "  vnic keys add --dir keys 3",
		Args:    names(-1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if domain == "" {
				if domain, err = cmlink.DomainOf(dir); err != nil {
					return err
				}
			}
			if err := cmlink.Add(dir, domain, args); err != nil {
				return err
			}
			return printIdentities(cmd, args, domain, dir, asJSON)
		},
	}
	add.Flags().StringVar(&dir, "dir", "keys", "folder with ca.pem and ca.key")
	add.Flags().StringVar(&domain, "domain", "", "domain of the new identities (default: that of the existing ones)")
	cli.JSONFlag(add.Flags(), &asJSON)
	return add
}

func renewKeysCommand() *cobra.Command {
	var dir string
	var asJSON bool
	renew := &cobra.Command{
		Use:   "renew NAME [NAME ...]",
		Short: "replace identities by new ones of the same authority",
		Long: `Makes a new host-NAME.pem and host-NAME.key for each NIC, with the same
identity, in place of those in the folder with ca.key. Copy them to the host and
run vnic reload there. The old certificate is good until then, and after, unless
vnic keys revoke is run before: it revokes the one that is there. No identity
outlives its authority.`,
		Example: "  vnic keys renew --dir keys 3",
		Args:    names(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			domain, err := cmlink.DomainOf(dir)
			if err != nil {
				return err
			}
			if err := cmlink.Renew(dir, args); err != nil {
				return err
			}
			return printIdentities(cmd, args, domain, dir, asJSON)
		},
	}
	renew.Flags().StringVar(&dir, "dir", "keys", "folder with ca.pem and ca.key")
	cli.JSONFlag(renew.Flags(), &asJSON)
	return renew
}

func showKeysCommand() *cobra.Command {
	var dir string
	var asJSON bool
	show := &cobra.Command{
		Use:   "show",
		Short: "list the identities of a folder and when they expire",
		Args:  cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := cmlink.Describe(dir)
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), list)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "FILE\tIDENTITY\tEXPIRES\tDAYS\tKEY\tSTATE")
			for i, d := range list {
				who, key, state := d.Identity, "here", "good"
				if !d.Key {
					key = "elsewhere"
				}
				switch {
				case who != "":
				case i == 0:
					who = "the authority"
				case d.Key:
					who = "the next authority"
				default:
					who = "an authority that no longer signs"
				}
				left := time.Until(d.Expires)
				switch {
				case d.Revoked:
					state = "revoked"
				case left < 0:
					state = "expired"
				case d.Outdated:
					state = "to be renewed"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", d.File, who, d.Expires.Format(time.DateOnly), int(left.Hours()/24), key, state)
			}
			return w.Flush()
		},
	}
	show.Flags().StringVar(&dir, "dir", "keys", "folder of the identities (`cm.identity` of a NIC)")
	cli.JSONFlag(show.Flags(), &asJSON)
	return show
}

func revokeKeysCommand() *cobra.Command {
	var dir string
	var asJSON bool
	revoke := &cobra.Command{
		Use:   "revoke NAME",
		Short: "revoke a NIC's certificate, so that others refuse it",
		Long: `Adds the certificate host-NAME.pem to ca.crl, which is signed with ca.key. Copy
ca.crl into the cm.identity folder of every NIC. A NIC notices it within a second:
the revoked NIC's link, connections and keys end there, and it is not let in again.`,
		Example: "  vnic keys revoke --dir keys 3",
		Args:    names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmlink.Revoke(dir, args[0]); err != nil {
				return err
			}
			r := revoked{args[0], filepath.Join(dir, "ca.crl")}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: revoked; copy %s to cm.identity of the other NICs\n", r.Name, r.List)
			return nil
		},
	}
	revoke.Flags().StringVar(&dir, "dir", "keys", "folder with ca.pem, ca.key and the NIC's certificate")
	cli.JSONFlag(revoke.Flags(), &asJSON)
	return revoke
}

// revoked is what `vnic keys revoke --json` prints.
type revoked struct {
	Name string `json:"name"`
	List string `json:"list"` // file
}

const authorityLong = `Replaces the authority of a folder while NICs use it, in three steps. After each, the
hosts get the files that have changed, and vnic reload on each takes them over:

  next     makes the next authority beside the present one.   copy ca.pem
  switch   has it sign from now on; then renew each identity   copy ca.crl, if there is
           (vnic keys renew).                                  one, and the identities
  drop     takes the old one out.                              copy ca.pem

Between two steps all hosts must have what the first one changed: a NIC trusts what is
in its ca.pem. Links stay as they are; drop ends those that still rest on the old
authority, and they come up again by the new identities.`

func authorityCommand() *cobra.Command {
	authority := &cobra.Command{Use: "authority", Short: "replace the authority while NICs use it", Long: authorityLong}
	for _, step := range []struct {
		name, short, said string
		do                func(dir string) error
	}{
		{"next", "make the next authority, which does not sign yet", "NICs that have the new ca.pem trust both; then: vnic keys authority switch", cmlink.Next},
		{"switch", "have the next authority sign from now on", "now renew each identity (vnic keys renew), and copy it and ca.crl, if there is one; then: vnic keys authority drop", cmlink.Switch},
		{"drop", "take out all authorities but the one that signs", "NICs that have the new ca.pem trust it alone", cmlink.Drop},
	} {
		var dir string
		var asJSON bool
		cmd := &cobra.Command{
			Use: step.name, Short: step.short, Args: cli.Arguments(0, 0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := step.do(dir); err != nil {
					return err
				}
				if asJSON {
					list, err := cmlink.Describe(dir)
					if err != nil {
						return err
					}
					return cli.PrintJSON(cmd.OutOrStdout(), list)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", filepath.Join(dir, "ca.pem"), step.said)
				return nil
			},
		}
		cmd.Flags().StringVar(&dir, "dir", "keys", "folder with ca.pem and ca.key")
		cli.JSONFlag(cmd.Flags(), &asJSON)
		authority.AddCommand(cmd)
	}
	return authority
}

func printIdentities(cmd *cobra.Command, names []string, domain, dir string, asJSON bool) error {
	made := make([]identity, len(names))
	for i, name := range names {
		made[i] = identity{name, cmlink.URI(domain, name), dir}
	}
	if asJSON {
		return cli.PrintJSON(cmd.OutOrStdout(), made)
	}
	for _, m := range made {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s\n", m.Name, m.Identity, m.Dir)
	}
	return nil
}

// identity is an identity made by `vnic keys init`, as printed with --json.
type identity struct {
	Name     string `json:"name"`
	Identity string `json:"identity"`
	Dir      string `json:"dir"`
}

func rotateKeysCommand() *cobra.Command {
	var o cli.NIC
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "replace the PSP keys of a running NIC; traffic continues",
		Long: `Makes a new PSP master key and sends every peer a new key under it. Packets that
peers seal with old keys are accepted until the peers have switched. The command
is refused while a peer has not confirmed the last rotation.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := o.Client().RotateKeys(cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, r, func(w io.Writer) {
				fmt.Fprintf(w, "generation %d: %d keys are being replaced\n", r.Generation, r.Keys)
			})
		},
	}
	o.Flags(rotate.Flags())
	return rotate
}

// names checks arguments that are names of NICs: one, and at most as many as given.
func names(most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cli.Arguments(1, most)(cmd, args); err != nil {
			return err
		}
		for _, name := range args {
			if err := cmlink.CheckName(name); err != nil {
				return cli.Usagef("NAME %v", err)
			}
		}
		return nil
	}
}
