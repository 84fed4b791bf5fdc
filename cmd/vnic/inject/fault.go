package inject

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
)

// faultKinds is the help text about the kinds of faults.
const faultKinds = `  event-lost       an event is not sent             --event --cq --qp
  event-duplicate  it is sent once more, 1 ms later  --event --cq --qp
  event-late       it is sent after --delay (5ms)    --event --cq --qp
  register-late    a register access is answered after --delay (5ms)
  command-fail     an admin command ends with --status (no-resources) and does nothing   --command
  cqe-error        a work request completes with --status (general-error)                --qp --opcode
  cq-overrun       a completion finds its queue full             --cq
  dma              the memory behind a region is found gone
  wrong-key        a peer's key is taken for wrong                                       --qp
  reset            a work request resets the function                                    --qp --opcode
  function-fault   a work request stops the function with FaultMemory                    --qp --opcode
  link-flap        a work request takes the link down for --delay (200ms)                --qp --opcode
  stuck-queue      send queues are not looked at, as long as the rule holds              --qp
  starve           the function gets no credits, as long as the rule holds`

func faultCommand() *cobra.Command {
	var o cli.NIC
	var r fault.Rule
	var share config.Share
	var delay, bound time.Duration
	cmd := &cobra.Command{
		Use:   "fault FUNCTION KIND",
		Short: "lose events, fail commands and work requests, stop queues, of one function",
		Long: `Adds a rule that makes operations of a function fail, and prints its rules. The
rule affects every operation that it matches, or those that --nth, --every and
--probability select. --limit and --for end the rule. Random choices depend only on
--seed and on how many operations matched, so a rule can be repeated exactly. The
kinds, what they match, and their flags:

` + faultKinds,
		Example: `  vnic inject fault pf0.vf1 event-lost --event cq --every 10
  vnic inject fault pf0.vf1 cqe-error --status remote-access-error --opcode read --nth 3
  vnic inject fault pf0.vf1 command-fail --command RegMR --probability 10% --seed 7
  vnic inject fault pf0.vf1 stuck-queue --qp 0x11 --for 2s`,
		Args:              cli.Arguments(2, 2),
		ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions, completeFaults),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Kind, r.DelayNS, r.ForNS, r.Probability = fault.Kind(args[1]), int64(delay), int64(bound), float64(share)
			list, err := o.Client().InjectFault(cmd.Context(), control.FaultChange{Function: args[0], Add: &r})
			if err != nil {
				return err
			}
			return printFaults(&o, cmd, list)
		},
	}
	f := cmd.Flags()
	o.Flags(cmd.Flags())
	f.Uint32Var(&r.QP, "qp", 0, "only of this queue pair")
	f.Uint32Var(&r.CQ, "cq", 0, "only of this completion queue")
	f.StringVar(&r.Opcode, "opcode", "", "only work requests of this `kind`: send, write, read, fetch-add …")
	f.StringVar(&r.Command, "command", "", "only this admin `command`, such as RegMR")
	f.StringVar(&r.Event, "event", "", "only this `event`: cq, admin, or another such as QP-fatal")
	f.Uint64Var(&r.Nth, "nth", 0, "only the n-th, from 1")
	f.Uint64Var(&r.Every, "every", 0, "only every n-th")
	f.Var(textFlag{&share}, "probability", "only this `share` of them, as 1% or 0.01")
	f.Uint64Var(&r.Seed, "seed", 0, "seed of the random choices")
	f.Uint64Var(&r.Limit, "limit", 0, "number of faults after which the rule ends")
	f.DurationVar(&bound, "for", 0, "the rule ends after this time")
	f.StringVar(&r.Status, "status", "", "`status` of the completion")
	f.DurationVar(&delay, "delay", 0, "how late, or how long")
	return cmd
}

func listCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use: "list", Short: "the rules and profiles of all functions, and how often they took effect", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := o.Client().Faults(cmd.Context())
			if err != nil {
				return err
			}
			return printFaults(&o, cmd, list)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

func clearCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use: "clear [FUNCTION [ID]]", Short: "remove one rule, all rules of a function with its profile, or all rules", Args: cli.Arguments(0, 2), ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := control.FaultChange{Clear: true}
			if len(args) > 0 {
				c.Function = args[0]
			}
			if len(args) > 1 {
				id, err := strconv.ParseUint(args[1], 10, 32)
				if err != nil || id == 0 {
					return cli.Usagef("rule %q: write its number, as vnic inject list shows it", args[1])
				}
				c.ID = uint32(id)
			}
			left, err := o.Client().InjectFault(cmd.Context(), c)
			if err != nil || !o.JSON {
				return err
			}
			return cli.PrintJSON(cmd.OutOrStdout(), left)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

func profileCommand() *cobra.Command {
	var o cli.NIC
	c := control.FaultChange{}
	cmd := &cobra.Command{
		Use:   "profile FUNCTION hostile|none",
		Short: "make a function use everything that docs/abi allows a device, to test its driver",
		Long: `With "hostile" a function serves doorbells and commands late, writes completions
many at once or one by one, sends events late, out of order or without need, and
splits messages. A device may do all of this; the function does nothing that a
device may not do. Random choices depend only on --seed. "none" ends it.`,
		Args:              cli.Arguments(2, 2),
		ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions, cli.Words("hostile", "none")),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Function, c.Profile = args[0], args[1]
			list, err := o.Client().InjectFault(cmd.Context(), c)
			if err != nil {
				return err
			}
			return printFaults(&o, cmd, list)
		},
	}
	o.Flags(cmd.Flags())
	cmd.Flags().Uint64Var(&c.Seed, "seed", 0, "seed of the random choices")
	return cmd
}

func recipeCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use:   "recipe [NAME FUNCTION]",
		Short: "apply a named set of faults to a function, to test its driver; without a name: list them",
		Long: `Adds the rules of a recipe to a function, and prints its rules. Without arguments
it lists the recipes: what goes wrong, and what a good driver does. No NIC has to run
for that. "vnic inject clear FUNCTION" ends them.`,
		Example:           "  vnic inject recipe\n  vnic inject recipe qp-error pf0.vf1",
		Args:              cli.Arguments(0, 2),
		ValidArgsFunction: cli.ByPosition(cli.Words(recipeNames()...), cli.CompleteFunctions),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := fault.Recipes()
			switch len(args) {
			case 0:
				return o.Print(cmd, all, func(w io.Writer) { writeRecipes(w, all) })
			case 1:
				return cli.Usagef("recipe %s: name the function, too, as vnic inject recipe %s pf0.vf1", args[0], args[0])
			}
			i := slices.IndexFunc(all, func(r fault.Recipe) bool { return r.Name == args[0] })
			if i < 0 {
				return cli.Usagef("unknown recipe %q; use one of %s", args[0], strings.Join(recipeNames(), ", "))
			}
			var list []control.Fault
			for _, r := range all[i].Rules {
				var err error
				if list, err = o.Client().InjectFault(cmd.Context(), control.FaultChange{Function: args[1], Add: &r}); err != nil {
					return err
				}
			}
			return printFaults(&o, cmd, list)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

func recipeNames() (names []string) {
	for _, r := range fault.Recipes() {
		names = append(names, r.Name)
	}
	return names
}

func writeRecipes(w io.Writer, all []fault.Recipe) {
	fmt.Fprintln(w, "RECIPE\tWHAT GOES WRONG\tWHAT A GOOD DRIVER DOES")
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Name, r.Wrong, r.Driver)
	}
}

// textFlag is a flag whose value is a config.Share.
type textFlag struct{ share *config.Share }

func (v textFlag) String() string { return "" }

func (v textFlag) Set(text string) error { return v.share.UnmarshalText([]byte(text)) }

func (v textFlag) Type() string { return "share" }

func printFaults(a *cli.NIC, cmd *cobra.Command, list []control.Fault) error {
	return a.Print(cmd, list, func(w io.Writer) { writeFaults(w, list) })
}

func writeFaults(w io.Writer, list []control.Fault) {
	fmt.Fprintln(w, "FUNCTION\tID\tFAULT\tRULE\tSEEN\tHITS\tSTATE")
	for _, f := range list {
		state := "in force"
		switch {
		case f.Over:
			state = "over"
		case f.RemainsMS > 0:
			state = fmt.Sprintf("in force for %v", time.Duration(f.RemainsMS)*time.Millisecond)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%s\n", f.Function, f.ID, f.Kind, describeRule(&f.Rule), f.Seen, f.Hits, state)
	}
}

// describeRule describes a rule in the words of its flags.
func describeRule(r *fault.Rule) string {
	var s []string
	add := func(name string, value any, given bool) {
		if given {
			s = append(s, fmt.Sprintf("%s %v", name, value))
		}
	}
	add("qp", fmt.Sprintf("%#x", r.QP), r.QP != 0)
	add("cq", fmt.Sprintf("%#x", r.CQ), r.CQ != 0)
	add("opcode", r.Opcode, r.Opcode != "")
	add("command", r.Command, r.Command != "")
	add("event", r.Event, r.Event != "")
	add("nth", r.Nth, r.Nth != 0)
	add("every", r.Every, r.Every != 0)
	add("probability", config.Share(r.Probability), r.Probability != 0)
	add("seed", r.Seed, r.Seed != 0)
	add("limit", r.Limit, r.Limit != 0)
	add("status", r.Status, r.Status != "")
	add("delay", time.Duration(r.DelayNS), r.DelayNS != 0)
	if len(s) == 0 {
		return "all"
	}
	return strings.Join(s, ", ")
}

// completeFaults offers the kinds of faults.
var completeFaults = cli.Words(faultNames()...)

func faultNames() (names []string) {
	for _, k := range fault.Kinds() {
		names = append(names, string(k))
	}
	return names
}
