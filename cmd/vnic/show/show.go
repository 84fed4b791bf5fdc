package show

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// showing is a subcommand of `vnic show`: how to query the NIC and how to print the answer.
type showing struct {
	name, short string
	ask         func(context.Context, *control.Client) (any, error)
	print       func(io.Writer, any)
}

var showings = []showing{
	{
		"nic", "the NIC, its uplink and its peers",
		func(ctx context.Context, c *control.Client) (any, error) { return c.NIC(ctx) },
		printNIC,
	},
	{
		"uplinks", "uplinks, their impairments, and what these did to packets",
		func(ctx context.Context, c *control.Client) (any, error) {
			n, err := c.NIC(ctx)
			return n.Uplinks, err
		},
		PrintUplinks,
	},
	{
		"functions", "functions, their state and who is attached",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Functions(ctx) },
		printFunctions,
	},
	{
		"connections", "connections between functions",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Connections(ctx) },
		printConnections,
	},
	{
		"routes", "where plain IP between ports goes",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Routes(ctx) },
		printRoutes,
	},
	{
		"qps", "queue pairs, their work, and what they wait for",
		func(ctx context.Context, c *control.Client) (any, error) { return c.QPs(ctx) },
		printQPs,
	},
	{
		"queues", "rings in guests' memory and how full they are",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Queues(ctx) },
		printQueues,
	},
	{
		"credits", "the credit tree: in use/limit, +guarantee, of NIC, host, functions and connections",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Credits(ctx) },
		printCredits,
	},
	{
		"keys", "security associations with other NICs (never the keys themselves)",
		func(ctx context.Context, c *control.Client) (any, error) { return c.Keys(ctx) },
		printKeys,
	},
}

func Command() *cobra.Command {
	show := &cobra.Command{Use: "show", Short: "show the state of a running NIC"}
	var o cli.NIC
	o.Flags(show.PersistentFlags())
	for _, s := range showings {
		show.AddCommand(&cobra.Command{
			Use: s.name, Short: s.short, Args: cli.Arguments(0, 0),
			RunE: func(cmd *cobra.Command, _ []string) error {
				v, err := s.ask(cmd.Context(), o.Client())
				if err != nil {
					return err
				}
				return o.Print(cmd, v, func(w io.Writer) { s.print(w, v) })
			},
		})
	}
	show.AddCommand(countersCommand(&o), violationsCommand(&o))
	return show
}

// takenDown returns a note if the operator has taken an uplink down.
func takenDown(u *control.Uplink) string {
	const by = ", down by impairment (vnic inject link)"
	switch rx, tx := u.RX.Impairment.Down, u.TX.Impairment.Down; {
	case rx && tx:
		return by
	case rx:
		return ", rx" + by[1:]
	case tx:
		return ", tx" + by[1:]
	}
	return ""
}

func printNIC(w io.Writer, v any) {
	n := v.(control.NIC)
	fmt.Fprintf(w, "host %d\t%s\tvnic %s\tpid %d", n.Host, n.Name, n.Version, n.PID)
	if n.Worker != 0 {
		fmt.Fprintf(w, ", worker %d, start %d", n.Worker, n.Starts)
	}
	if n.Stuck != 0 {
		fmt.Fprintf(w, ", %d replaced because the event loop was stuck", n.Stuck)
	}
	fmt.Fprintln(w)
	if n.UpgradeRefused != "" {
		fmt.Fprintf(w, "last upgrade refused: %s\n", strings.ReplaceAll(n.UpgradeRefused, "\n", "; "))
	}
	if n.ReloadRefused != "" {
		fmt.Fprintf(w, "last reload refused: %s\n", strings.ReplaceAll(n.ReloadRefused, "\n", "; "))
	}
	if n.Recording != "" {
		fmt.Fprintf(w, "records to %s\n", n.Recording)
	}
	for _, text := range n.Warnings {
		fmt.Fprintf(w, "runs without %s\n", text)
	}
	for _, u := range n.Uplinks {
		fmt.Fprintf(w, "uplink %s\t%s\t%s\tmtu %d%s\n", u.Name, u.Addr, u.MAC, u.MTU, takenDown(&u))
	}
	for _, p := range n.Peers {
		state := "down"
		if p.Up {
			state = "up"
		}
		if p.Note != "" {
			state += " (" + p.Note + ")"
		}
		fmt.Fprintf(w, "peer %s\t%s\t%s\t%s, %d functions, %d connections\n", p.Name, p.Underlay, p.Identity, state, p.Functions, p.Connections)
	}
}

func printFunctions(w io.Writer, v any) {
	fmt.Fprint(w, "FUNCTION\tSTATE\tTENANT\tADDRESS\tRDMA\tGUEST\tATTACHED\t")
	for k := range abi.NumObjects {
		fmt.Fprintf(w, "%s\t", k)
	}
	fmt.Fprintln(w, "LINK\tMBIT/S\tFAULT")
	for _, f := range v.([]control.Function) {
		rate := "-"
		if f.MaxTxRate > 0 {
			rate = fmt.Sprint(f.MaxTxRate)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t", f.ID, f.State, f.Tenant, f.Addr, f.RDMA, f.Guest, f.Attached)
		for k := range abi.NumObjects {
			fmt.Fprintf(w, "%d\t", *f.Has(k))
		}
		fault := f.Fault
		if f.Port != nil && f.Port.Fault != "" {
			fault = strings.TrimPrefix(fault+"; port: "+f.Port.Fault, "; ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", cli.UpDown(f.LinkUp), rate, fault)
	}
}

func printRoutes(w io.Writer, v any) {
	fmt.Fprintln(w, "TENANT\tPREFIX\tVIA\tTO\tMTU")
	for _, r := range v.([]control.Route) {
		to := r.Kind
		switch {
		case r.Kind == "port":
			to = "port " + r.Port
		case r.Kind == "peer" && r.Sealed:
			to = "peer " + r.PeerName
		case r.Kind == "peer":
			to = fmt.Sprintf("peer %s, waiting for its key", r.PeerName)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\n", r.Tenant, r.Prefix, r.Via, to, r.MTU)
	}
}

func violationsCommand(o *cli.NIC) *cobra.Command {
	clear := false
	cmd := &cobra.Command{
		Use: "violations", Short: "rules of docs/abi that drivers broke, and work requests that were wrong", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ask := (*control.Client).Violations
			if clear {
				ask = (*control.Client).ClearViolations
			}
			list, err := ask(o.Client(), cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, list, func(w io.Writer) { printViolations(w, list) })
		},
	}
	cmd.Flags().BoolVar(&clear, "clear", false, "show them for the last time: the NIC forgets them")
	return cmd
}

func printViolations(w io.Writer, list []control.Violation) {
	fmt.Fprintln(w, "FUNCTION\tCLAUSE\tRING\tQUEUE\tINDEX\tCOUNT\tSINCE\tWHAT\tBYTES")
	for _, x := range list {
		since := (time.Duration(x.AgeMS) * time.Millisecond).Round(time.Second)
		fmt.Fprintf(w, "%s\t%s\t%s\t%#x\t%d\t%d\t%s\t%s\t%s\n", x.Function, cmp.Or(x.Clause, "-"), x.Ring, x.Queue, x.Index, x.Count, since, x.What, cmp.Or(x.Bytes, "-"))
	}
}

func printConnections(w io.Writer, v any) {
	fmt.Fprintln(w, "ID\tSTATE\tFUNCTION\tQPN\tWIRE\tNIC\tPEER\tPEER QPN\tTENANT\tCID\tPEER CID\tMTU\tRETRANSMITS\tCWND\tRTT\tNOTE")
	for _, c := range v.([]control.Connection) {
		fmt.Fprintf(w, "%d\t%s\t%s\t%#x\t%s\t%s\t%s\t%#x\t%d\t%#x\t%#x\t%d\t%d\t%.1f\t%v\t%s\n",
			c.ID, c.State, c.Function, c.QPN, c.Wire, cmp.Or(c.PeerName, "-"), cmp.Or(c.PeerFunction, c.PeerAddress), c.PeerQPN, c.Tenant, c.LocalCID, c.RemoteCID, c.MTU, c.Retransmits,
			c.Cwnd, time.Duration(c.RTTNS).Round(time.Microsecond), cmp.Or(c.Note, "-"))
	}
}

func printQPs(w io.Writer, v any) {
	fmt.Fprintln(w, "FUNCTION\tQPN\tTYPE\tSTATE\tPEER\tPEER QPN\tPOSTED\tIN FLIGHT\tPACKETS\tWAITS\tSEND CQ\tRECV CQ")
	for _, q := range v.([]control.QP) {
		fmt.Fprintf(w, "%s\t%#x\t%s\t%s\t%s\t%#x\t%d\t%d\t%d\t%s\t%#x\t%#x\n",
			q.Function, q.QPN, q.Type, q.State, cmp.Or(q.Peer, "-"), q.PeerQPN, q.Posted, q.InFlight, q.Packets, cmp.Or(q.Waits, "-"), q.SendCQ, q.RecvCQ)
	}
}

func printQueues(w io.Writer, v any) {
	fmt.Fprintln(w, "FUNCTION\tKIND\tNUMBER\tENTRIES\tPRODUCER\tCONSUMER\tLEVEL\tNOTE")
	for _, q := range v.([]control.Queue) {
		fmt.Fprintf(w, "%s\t%s\t%#x\t%d\t%d\t%d\t%d\t%s\n", q.Function, q.Kind, q.Number, q.Entries, q.Producer, q.Consumer, q.Level, cmp.Or(q.Note, "-"))
	}
}

// creditCounters lists the columns in order: the six counters of Falcon §8.2.3 and the two network
// pools.
var creditCounters = func() (names []string) {
	for i := range credit.Counter(credit.NumCounters) {
		names = append(names, i.String())
	}
	return names
}()

func printCredits(w io.Writer, v any) {
	fmt.Fprintf(w, "LEVEL\tNAME\t%s\tREFUSED\n", strings.ToUpper(strings.Join(creditCounters, "\t")))
	for _, n := range v.([]control.CreditNode) {
		fmt.Fprintf(w, "%s\t%s", n.Level, n.Name)
		for _, c := range creditCounters {
			cell := fmt.Sprint(n.InUse[c])
			if limit, ok := n.Limit[c]; ok {
				cell += fmt.Sprintf("/%d", limit)
			}
			if g := n.Guarantee[c]; g > 0 {
				cell += fmt.Sprintf("+%d", g)
			}
			fmt.Fprintf(w, "\t%s", cell)
		}
		fmt.Fprintf(w, "\t%d\n", n.Refused)
	}
}

func printKeys(w io.Writer, v any) {
	fmt.Fprintln(w, "DIRECTION\tPEER\tTENANT\tCLASS\tSPI\tPREVIOUS\tGENERATION\tPACKETS")
	for _, k := range v.([]control.Key) {
		previous, generation, packets := "-", "-", "-"
		if k.Direction == "tx" {
			packets = fmt.Sprint(k.Packets)
		} else {
			generation = fmt.Sprint(k.Generation)
		}
		if k.Previous != 0 {
			previous = fmt.Sprintf("%#x", k.Previous)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%#x\t%s\t%s\t%s\n", k.Direction, k.PeerName, k.Tenant, k.Class, k.SPI, previous, generation, packets)
	}
}

func PrintUplinks(w io.Writer, v any) {
	fmt.Fprintln(w, "UPLINK\tADDRESS\tMTU\tDIR\tIMPAIRMENT\tPACKETS\tDELIVERED\tLOST\tDUPLICATED\tREORDERED\tCORRUPTED\tMARKED\tOVERFLOWED")
	for _, u := range v.([]control.Uplink) {
		for _, d := range []struct {
			name string
			control.Direction
		}{{"rx", u.RX}, {"tx", u.TX}} {
			c := d.Counts
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", u.Name, u.Addr, u.MTU, d.name, describeImpairment(d.Impairment),
				c.Packets, c.Delivered, c.Lost, c.Duplicated, c.Reordered, c.Corrupted, c.Marked, c.Overflowed)
		}
	}
}

// describeImpairment describes an impairment in the words of the flags of `vnic inject link`.
func describeImpairment(i control.Impairment) string {
	var s []string
	add := func(name string, value any, zero bool) {
		if !zero {
			s = append(s, fmt.Sprintf("%s %v", name, value))
		}
	}
	if i.Down {
		s = append(s, "down")
	}
	add("loss", config.Share(i.Loss), i.Loss == 0)
	add("duplicate", config.Share(i.Duplicate), i.Duplicate == 0)
	add("reorder", fmt.Sprintf("%v by %v", config.Share(i.Reorder), time.Duration(i.ReorderDelayNS)), i.Reorder == 0)
	add("corrupt", config.Share(i.Corrupt), i.Corrupt == 0)
	add("mark", config.Share(i.Mark), i.Mark == 0)
	add("delay", time.Duration(i.DelayNS), i.DelayNS == 0)
	add("jitter", time.Duration(i.JitterNS), i.JitterNS == 0)
	add("rate", config.Rate(i.Rate), i.Rate == 0)
	if len(s) == 0 {
		return "none"
	}
	return fmt.Sprintf("%s (seed %d)", strings.Join(s, ", "), i.Seed)
}

// countersCommand returns `vnic show counters`.
func countersCommand(o *cli.NIC) *cobra.Command {
	var nonzero bool
	cmd := &cobra.Command{
		Use:   "counters [PATTERN ...]",
		Short: "packet and drop counters, all or those that a pattern matches",
		Long: `Prints the counters of the NIC. A PATTERN is a part of a name, or, with * or ?
in it, a whole name; a counter that one of them matches is printed.`,
		Example: `  vnic show counters --nonzero
  vnic show counters drop --nonzero
  vnic show counters 'falcon.*_sent' psp`,
		ValidArgsFunction: completeCounters,
		RunE: func(cmd *cobra.Command, patterns []string) error {
			for _, p := range patterns {
				if _, err := path.Match(p, ""); err != nil {
					return cli.Usagef("pattern %q: a [ has no end; write a part of a name, or * and ? for any characters", p)
				}
			}
			all, err := o.Client().Counters(cmd.Context())
			if err != nil {
				return err
			}
			maps.DeleteFunc(all, func(name string, n uint64) bool { return nonzero && n == 0 || !wanted(name, patterns) })
			if len(all) == 0 && len(patterns) > 0 && !nonzero {
				return fmt.Errorf("no counter matches %s; vnic show counters prints all", strings.Join(patterns, ", "))
			}
			return o.Print(cmd, all, func(w io.Writer) { printCounters(w, all) })
		},
	}
	cmd.Flags().BoolVarP(&nonzero, "nonzero", "n", false, "only those that have counted something")
	return cmd
}

// wanted reports whether one of the patterns matches a counter's name. Without patterns it returns
// true.
func wanted(name string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		if whole, _ := path.Match(p, name); whole {
			return true
		}
		return strings.Contains(name, p)
	})
}

func printCounters(w io.Writer, counters control.Counters) {
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		fmt.Fprintf(w, "%s\t%d\n", name, counters[name])
	}
}

// completeCounters offers the counters of the NIC.
var completeCounters = cli.FromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	all, _ := c.Counters(ctx)
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
})

// Print prints state as the subcommand of that name shows it.
func Print(w io.Writer, name string, v any) {
	switch is := v.(type) {
	case []control.Violation:
		printViolations(w, is)
		return
	case control.Counters:
		printCounters(w, is)
		return
	}
	for _, s := range showings {
		if s.name == name {
			s.print(w, v)
		}
	}
}
