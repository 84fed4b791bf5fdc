package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device/control"
)

// countersCommand returns `vnic show counters`.
func countersCommand(o *asking) *cobra.Command {
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
					return usagef("pattern %q: a [ has no end; write a part of a name, or * and ? for any characters", p)
				}
			}
			all, err := o.client().Counters(cmd.Context())
			if err != nil {
				return err
			}
			maps.DeleteFunc(all, func(name string, n uint64) bool { return nonzero && n == 0 || !wanted(name, patterns) })
			if len(all) == 0 && len(patterns) > 0 && !nonzero {
				return fmt.Errorf("no counter matches %s; vnic show counters prints all", strings.Join(patterns, ", "))
			}
			return o.print(cmd, all, func(w io.Writer) { printCounters(w, all) })
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
var completeCounters = fromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	all, _ := c.Counters(ctx)
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
})
