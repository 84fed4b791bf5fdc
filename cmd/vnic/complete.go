package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/device/settings"
)

// Shell completion queries the NIC that the command line names, so it offers only names that exist.

// completionTime is the time limit of that query.
const completionTime = time.Second

type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// fromNIC returns a completion that offers the words that ask gets from the NIC, or nothing if no
// NIC answers.
func fromNIC(ask func(context.Context, *control.Client) []string) completion {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		socket, err := cmd.Flags().GetString("socket")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		return ask(ctx, control.NewClient(socket)), cobra.ShellCompDirectiveNoFileComp
	}
}

// firstly returns a completion that uses the first of offers for the first argument, the second for
// the second argument, and so on.
func firstly(offers ...completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) < len(offers) {
			return offers[len(args)](cmd, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func words(w ...string) completion {
	return cobra.FixedCompletions(w, cobra.ShellCompDirectiveNoFileComp)
}

var (
	completeFunctions = fromNIC(func(ctx context.Context, c *control.Client) (names []string) {
		fs, _ := c.Functions(ctx)
		for _, f := range fs {
			_, short, _ := strings.Cut(f.ID, ".")
			names = append(names, short)
		}
		return names
	})
	completePorts = fromNIC(func(ctx context.Context, c *control.Client) []string {
		names := []string{"any"}
		fs, _ := c.Functions(ctx)
		for _, f := range fs {
			if f.Port != nil {
				names = append(names, f.Port.Name)
			}
		}
		return names
	})
	completeUplinks = fromNIC(func(ctx context.Context, c *control.Client) (names []string) {
		n, _ := c.NIC(ctx)
		for _, u := range n.Uplinks {
			names = append(names, u.Name)
		}
		return names
	})
	completeCounters = fromNIC(func(ctx context.Context, c *control.Client) (names []string) {
		all, _ := c.Counters(ctx)
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	})
	completeQPs = fromNIC(func(ctx context.Context, c *control.Client) (numbers []string) {
		qps, _ := c.QPs(ctx)
		for _, q := range qps {
			numbers = append(numbers, "0x"+strconv.FormatUint(uint64(q.QPN), 16))
		}
		return numbers
	})
	completeFaults = words(faultNames()...)
)

func faultNames() (names []string) {
	for _, k := range fault.Kinds() {
		names = append(names, string(k))
	}
	return names
}

// completeSettings offers the keys of `vnic vf set`, and the values of keys that have only a few.
func completeSettings(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completeFunctions(cmd, args, begun)
	}
	_, rest := functionName(args)
	if len(rest) > 0 && (rest[0] == "enable" || rest[0] == "disable") {
		rest = rest[1:]
	}
	if len(rest)%2 == 0 {
		return append(settings.Keys(), "enable", "disable"), cobra.ShellCompDirectiveNoFileComp
	}
	if s := settings.Find(rest[len(rest)-1]); s != nil {
		return s.Values, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeGuests offers the context ids of the guests in a configuration.
func completeGuests(cmd *cobra.Command, _ []string, _ string) (cids []string, _ cobra.ShellCompDirective) {
	path, _ := cmd.Flags().GetString("config")
	if cfg, err := config.Load(path); err == nil {
		for _, a := range cfg.Attach {
			if a.CID != 0 {
				cids = append(cids, strconv.FormatUint(uint64(a.CID), 10))
			}
		}
	}
	return cids, cobra.ShellCompDirectiveNoFileComp
}
