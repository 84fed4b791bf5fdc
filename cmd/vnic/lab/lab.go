package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

// Command returns `vnic lab`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "lab",
		Short: "make a network of hosts, tenants and guests on this machine, from one file",
		Long: `Makes what a file describes: hosts with a NIC each, links between them, tenants and
their machines. All of it is in network namespaces that are named after the lab, and
is ordinary: "vnic run" with a configuration file, bridges, ip netns. Several labs can
be up at a time. It needs root and iproute2.`,
		Example: `  vnic lab up two-hosts
  vnic lab exec m1 ping -c 3 m2
  vnic lab down`,
	}
	var name string
	c.PersistentFlags().StringVarP(&name, "lab", "l", "", "`name` of the lab (default: the only one that is up)")
	_ = c.RegisterFlagCompletionFunc("lab", completeLabs)
	c.AddCommand(upCommand(), downCommand(&name), statusCommand(&name), execCommand(&name), configCommand(&name), validateCommand(&name), testCommand(),
		linkCommand(&name), captureCommand(&name), graphCommand(&name), webCommand(&name),
		shellCommand(&name), cpCommand(&name), consoleCommand(&name), restartCommand(&name), reloadCommand(&name), crashCommand(&name), gdbCommand(&name), watchCommand(&name))
	return c
}

func upCommand() *cobra.Command {
	var d debugging
	c := &cobra.Command{
		Use:   "up FILE|NAME",
		Short: "make what a file describes, or what changed in it",
		Long: `Makes the lab of a file, or one that comes with the program: ` + strings.Join(labfile.Shipped(), ", ") + `.
If the lab is up already, what changed in the file is made anew, and the rest goes on.

With --kernel its guests boot that kernel, in place of what the file says. With --gdb its
guest stands still before its first instruction, and the command becomes gdb, as "vnic
lab restart GUEST --gdb" does.`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeShipped,
		RunE: func(cmd *cobra.Command, args []string) error {
			changes, paused, err := d.changesFor(args[0])
			if err != nil {
				return err
			}
			p, err := up(cmd.Context(), args[0], changes, paused, newProgress(cmd.ErrOrStderr()))
			if err != nil && p != nil {
				err = fmt.Errorf("%w\nvnic lab up continues, vnic lab down %s removes what was made", err, p.Name)
			}
			if err != nil {
				return err
			}
			s := statusOf(cmd.Context(), p.Name)
			if err := cli.PrintTable(cmd.OutOrStdout(), s.print); err != nil || paused == "" {
				return err
			}
			return p.machine(paused).gdb("")
		},
	}
	d.flags(c)
	return c
}

func downCommand(name *string) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "down [NAME|FILE]",
		Short: "remove a lab; nothing of it stays",
		Long: `Ends every process in the lab's network namespaces and removes the namespaces and the
lab's folder. Without a name it removes the only lab that there is.`,
		Args:              cli.Arguments(0, 1),
		ValidArgsFunction: completeLabs,
		RunE: func(_ *cobra.Command, args []string) error {
			if *name != "" {
				args = append(args, *name)
			}
			if all {
				if len(args) > 0 {
					return cli.Usagef("--all and a name: leave one of them out")
				}
				var errs []error
				for _, name := range labs() {
					errs = append(errs, down(name))
				}
				return errors.Join(errs...)
			}
			if len(args) > 1 {
				return cli.Usagef("--lab and a name: leave one of them out")
			}
			name, err := nameOf(strings.Join(args, ""))
			if err != nil {
				return err
			}
			return down(name)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "remove every lab")
	return c
}

func statusCommand(name *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "hosts, NICs, machines, addresses, and how to get in",
		Args:  cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := labs()
			if *name != "" {
				chosen, err := choose(*name)
				if err != nil {
					return err
				}
				names = []string{chosen}
			}
			all := []labStatus{}
			for _, n := range names {
				all = append(all, statusOf(cmd.Context(), n))
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), all)
			}
			if len(all) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "there is no lab; vnic lab up makes one")
			}
			for _, s := range all {
				if err := cli.PrintTable(cmd.OutOrStdout(), s.print); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cli.JSONFlag(c.Flags(), &asJSON)
	return c
}

func execCommand(name *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "exec MACHINE|HOST COMMAND [ARGUMENT …]",
		Short: "run a command in a machine or on a host",
		Long: `Becomes the command, in the network namespace of a machine or a host, or runs it in a
guest, over vsock. In a machine the names of its tenant's machines are known, and
"vnic guest" uses the machine's function. On a host "vnic show" and others ask the
host's NIC.`,
		Example: `  vnic lab exec red1 ping -c 3 red2
  vnic lab exec red1 vnic guest info
  vnic lab exec a vnic show counters`,
		Args:              cli.Arguments(2, -1),
		ValidArgsFunction: completePlaces(name),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*name)
			if err != nil {
				return err
			}
			words := args[1:]
			if words[0] == "--" && len(words) > 1 {
				words = words[1:]
			}
			return p.run(cmd.Context(), args[0], words...)
		},
	}
	c.Flags().SetInterspersed(false) // the command's flags are its own
	return c
}

func configCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:               "config HOST|GUEST|etcd",
		Short:             "the configuration of a host's NIC or of etcd, or the QEMU line of a guest, as the lab made it",
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completePlaces(name),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*name)
			if err != nil {
				return err
			}
			path := ""
			if h := p.host(args[0]); h != nil {
				path = h.Config()
			} else if m := p.machine(args[0]); m != nil && m.Guest != nil {
				path = m.File(".qemu")
			} else if p.isEtcd(args[0]) {
				path = p.etcd.Config()
			} else {
				return p.noHostOrGuest(args[0])
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(b)
			return err
		},
	}
}

func validateCommand(name *string) *cobra.Command {
	var junit string
	c := &cobra.Command{
		Use:   "validate",
		Short: "run the checks of the lab's file",
		Args:  cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := open(*name)
			if err != nil {
				return err
			}
			all := p.validate(cmd.Context(), cmd.OutOrStdout())
			err = failed(all)
			if junit != "" {
				err = errors.Join(err, writeJUnit(junit, p.Name, all, nil))
			}
			return err
		},
	}
	junitFlag(c, &junit)
	return c
}

func junitFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "junit", "", "write the results to a `file` in JUnit's format, too")
}

func testCommand() *cobra.Command {
	var junit string
	c := &cobra.Command{
		Use:               "test FILE|NAME",
		Short:             "up, validate, down: for CI",
		Long:              `Makes the lab, runs the checks of its file, and removes it. The exit status says whether all passed.`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeShipped,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, _, err := labfile.Load(args[0])
			if err != nil {
				return err
			}
			if slices.Contains(labs(), l.Name) {
				return fmt.Errorf("lab %s is up: vnic lab validate checks it, vnic lab down %[1]s removes it", l.Name)
			}
			var all []outcome
			p, broken := up(cmd.Context(), args[0], nil, "", newProgress(cmd.ErrOrStderr()))
			if broken == nil {
				all = p.validate(cmd.Context(), cmd.OutOrStdout())
			}
			err = errors.Join(broken, failed(all))
			if junit != "" {
				err = errors.Join(err, writeJUnit(junit, l.Name, all, broken))
			}
			if slices.Contains(labs(), l.Name) {
				err = errors.Join(err, down(l.Name))
			}
			return err
		},
	}
	junitFlag(c, &junit)
	return c
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, terminal: cli.IsTerminal(w), begun: time.Now()}
}

func completeLabs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return labs(), cobra.ShellCompDirectiveNoFileComp
}

// completeShipped offers the labs that come with the program, beside files.
func completeShipped(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return labfile.Shipped(), cobra.ShellCompDirectiveDefault
}

// completeNames offers names of the lab for the first argument.
func completeNames(lab *string, names func(*plan) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		p, err := open(*lab)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(p), cobra.ShellCompDirectiveNoFileComp
	}
}

// completePlaces offers the machines and hosts of the lab for the first argument, and files for others.
func completePlaces(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		p, err := open(*name)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return p.places(), cobra.ShellCompDirectiveNoFileComp
	}
}
