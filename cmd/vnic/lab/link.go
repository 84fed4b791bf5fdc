package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/config"
)

// A link is impaired by the NICs at its ends: each delays, loses and reorders what it sends, packet by
// packet, below plain IP and RDMA (package device/thread). That needs nothing of the kernel, which may
// lack netem, costs nothing while there is no impairment, and can be changed while the NIC runs. What
// the hosts themselves send, their NICs' TLS, is not impaired.

// linkFlags are the flags of `vnic lab link` with the keys of the file that they set.
var linkFlags = []struct{ name, usage string }{
	{"delay", "of every packet, as 5ms"},
	{"jitter", "at most so much more delay, evenly distributed"},
	{"loss", "share of packets that are lost, as 1%"},
	{"rate", "bits per second, as 1G; 0: unlimited"},
	{"reorder", "share of packets that are held back, so that later ones overtake"},
	{"reorder-delay", "how long those are held back"},
	{"duplicate", "share of packets that come twice"},
	{"corrupt", "share of packets with one bit flipped"},
	{"mark", "share of packets that are marked (ECN, congestion experienced)"},
	{"queue", "packets under way at most"},
}

func linkCommand(lab *string) *cobra.Command {
	var end string
	var cut, reset bool
	c := &cobra.Command{
		Use:   "link [LINK]",
		Short: "show the links, or change what one does to packets, cut it and mend it",
		Long: `Changes what the ends of a link do to the packets that they send, while they run; with
--end only what one host sends. Values that are not named stay. --down cuts the link,
with --end the cable of one host; --down=false mends it. "vnic lab up" sets what the
file says again. Without flags it shows the links.`,
		Example: `  vnic lab link a-b --delay 5ms --jitter 1ms --loss 1%
  vnic lab link a-b --end a --rate 100M
  vnic lab link a-b --down
  vnic lab link a-b --clear`,
		Args:              cli.Arguments(0, 1),
		ValidArgsFunction: completeNames(lab, (*plan).linkNames),
	}
	f := c.Flags()
	f.StringVar(&end, "end", "", "`host`: change only what it sends")
	values := map[string]*string{}
	for _, l := range linkFlags {
		values[l.name] = f.String(l.name, "", l.usage)
	}
	f.BoolVar(&cut, "down", false, "cut it; --down=false mends it")
	f.BoolVar(&reset, "clear", false, "first remove all that it does to packets")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var keys []string
		for _, l := range linkFlags {
			if f.Changed(l.name) {
				keys = append(keys, fmt.Sprintf("%s: %q", strings.ReplaceAll(l.name, "-", "_"), *values[l.name]))
			}
		}
		if f.Changed("down") {
			keys = append(keys, fmt.Sprintf("down: %v", cut))
		}
		p, err := open(*lab)
		if err != nil {
			return err
		}
		if len(keys) > 0 || reset {
			if len(args) == 0 {
				return cli.Usagef("%sname the link: %s", cli.Place(cmd), strings.Join(p.linkNames(), ", "))
			}
			if p, err = changeLink(cmd.Context(), p.Name, args[0], end, reset, "{"+strings.Join(keys, ", ")+"}"); err != nil {
				return err
			}
		}
		if len(args) > 0 && p.link(args[0]) == nil {
			return p.noLink(args[0])
		}
		return cli.PrintTable(cmd.OutOrStdout(), func(w io.Writer) { p.printLinks(w, strings.Join(args, "")) })
	}
	return c
}

func (p *plan) linkNames() (names []string) {
	for _, k := range p.Links {
		names = append(names, k.Name)
	}
	return names
}

// link returns the link with a name, or nil.
func (p *plan) link(name string) *labfile.Link {
	i := slices.Index(p.linkNames(), name)
	if i < 0 {
		return nil
	}
	return &p.Links[i]
}

func (p *plan) noLink(name string) error {
	return fmt.Errorf("lab %s has no link %q; it has %s", p.Name, name, strings.Join(p.linkNames(), ", "))
}

// sends returns how what a host sends is impaired now.
func (p *plan) sends(h *host) config.Impairment {
	changed, ok := p.state.Links[h.Name]
	if !ok {
		return h.Link.Sends(h.Name)
	}
	i := config.NoImpairment()
	_ = config.Decode([]byte(changed), &i, nil) // it was written by impairWords
	return i
}

// changeLink changes what the ends of a lab's link, or one of them, do to what they send.
func changeLink(ctx context.Context, lab, name, end string, reset bool, change string) (*plan, error) {
	p, unlock, err := openLocked(lab)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k := p.link(name)
	switch {
	case k == nil:
		return nil, p.noLink(name)
	case end != "" && !slices.Contains(k.Endpoints, end):
		return nil, cli.Usagef("--end %s: link %s joins %s", end, name, strings.Join(k.Endpoints, ", "))
	}
	if p.state.Links == nil {
		p.state.Links = map[string]string{}
	}
	for _, h := range p.hosts {
		if h.Link != k || end != "" && h.Name != end {
			continue
		}
		i := p.sends(h)
		if reset {
			i = config.NoImpairment()
		}
		if err := config.Decode([]byte(change), &i, nil); err != nil {
			return nil, valueError(err)
		}
		if err := i.Check(); err != nil {
			return nil, valueError(err)
		}
		p.state.Links[h.Name] = "{" + strings.Join(append(impairWords(i), fmt.Sprintf("seed: %d", i.Seed)), ", ") + "}"
	}
	if p, err = newPlan(p.Lab, p.state); err != nil {
		return nil, err
	}
	for _, h := range p.hosts {
		if h.Link.Name == name {
			if err := h.adapt(ctx); err != nil {
				return nil, err
			}
		}
	}
	return p, p.state.save(folder(p.Name))
}

// valueError writes the problems of values that came from flags.
func valueError(err error) error {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return err
	}
	p := problems[0]
	p.Line, p.Path = 0, "--"+strings.ReplaceAll(p.Path, "_", "-")
	return cli.Usagef("%s", p.String())
}

// printLinks prints a row for each end of the links, or of the named one.
func (p *plan) printLinks(w io.Writer, name string) {
	fmt.Fprintln(w, "LINK\tMTU\tEND\tSTATE\tWHAT IT DOES TO PACKETS THAT IT SENDS")
	for _, h := range p.hosts {
		if name != "" && h.Link.Name != name {
			continue
		}
		i, state := p.sends(h), "up"
		if i.Down {
			state = "cut"
		}
		i.Down = false
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", h.Link.Name, h.Link.MTU, h.Name, state, cmp.Or(strings.Join(impairWords(i), ", "), "nothing"))
	}
}
