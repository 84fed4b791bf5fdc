package inject

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
)

func Command() *cobra.Command {
	inject := &cobra.Command{Use: "inject", Short: "make things go wrong in a running NIC"}
	inject.AddCommand(linkCommand(), faultCommand(), recipeCommand(), profileCommand(), listCommand(), clearCommand())
	return inject
}

func linkCommand() *cobra.Command {
	var o cli.NIC
	var clear bool
	change := control.LinkChange{}
	link := &cobra.Command{
		Use:   "link [UPLINK]",
		Short: "lose, delay, reorder, damage, mark packets of an uplink, or take it down",
		Long: `Changes what an uplink does to packets, in one direction or both. Values that you
do not name stay as they are; --clear first removes all of them. Random choices
depend only on the seed and on the number of packets since the seed was set, so
they can be repeated. "vnic show uplinks" shows the settings and what they did.`,
		Example: `  vnic inject link --dir tx --loss 1% --reorder 5%
  vnic inject link --delay 2ms --jitter 500us --rate 1G
  vnic inject link --down
  vnic inject link --down=false
  vnic inject link --clear`,
		Args:              cli.Arguments(0, 1),
		ValidArgsFunction: cli.ByPosition(completeUplinks),
	}
	f := link.Flags()
	o.Flags(f)
	f.StringVar(&change.Direction, "dir", "", "`rx` for what arrives, tx for what leaves; both when left out")
	_ = link.RegisterFlagCompletionFunc("dir", cli.Words("rx", "tx"))
	f.BoolVar(&clear, "clear", false, "first remove all settings, then apply the other flags")
	fields := linkFields()
	for _, v := range fields {
		f.Var(v, v.flag, v.usage)
		f.Lookup(v.flag).NoOptDefVal = v.alone
	}
	link.RunE = func(cmd *cobra.Command, args []string) error {
		set := map[string]any{}
		for _, v := range fields {
			if v.given {
				set[v.field] = v.value
			}
		}
		if len(set) == 0 && !clear {
			return cli.Usagef("nothing to change: name a value, as --loss 1%%, or --clear")
		}
		if len(args) > 0 {
			change.Uplink = args[0]
		}
		change.Clear = clear
		var err error
		if change.Set, err = json.Marshal(set); err != nil {
			return err
		}
		u, err := o.Client().InjectLink(cmd.Context(), change)
		if err != nil {
			return err
		}
		return o.Print(cmd, u, func(w io.Writer) { show.PrintUplinks(w, []control.Uplink{u}) })
	}
	return link
}

// linkField is a flag of `vnic inject link` and the field of a control.Impairment
// it changes.
type linkField struct {
	flag, field, usage string
	kind, alone        string // alone: the value if the flag is given without one
	read               func(text string) (any, error)
	value              any
	text               string
	given              bool
}

func (v *linkField) String() string { return v.text }

func (v *linkField) Type() string { return v.kind }

// Set implements pflag.Value.
func (v *linkField) Set(text string) (err error) {
	v.value, err = v.read(text)
	v.text, v.given = text, err == nil
	return err
}

func linkFields() []*linkField {
	share := readText[config.Share]
	return []*linkField{
		{flag: "loss", field: "loss", kind: "share", read: share, usage: "packets lost, as 1% or 0.01"},
		{flag: "duplicate", field: "duplicate", kind: "share", read: share, usage: "packets that come twice"},
		{flag: "reorder", field: "reorder", kind: "share", read: share, usage: "packets held back for --reorder-delay, so that later ones overtake"},
		{flag: "reorder-delay", field: "reorder_delay_ns", kind: "duration", read: readDuration, usage: "default 200us"},
		{flag: "corrupt", field: "corrupt", kind: "share", read: share, usage: "packets with one bit flipped"},
		{flag: "mark", field: "mark", kind: "share", read: share, usage: "packets marked congestion experienced (ECN)"},
		{flag: "delay", field: "delay_ns", kind: "duration", read: readDuration, usage: "of every packet"},
		{flag: "jitter", field: "jitter_ns", kind: "duration", read: readDuration, usage: "at most so much more delay, evenly distributed"},
		{flag: "rate", field: "rate", kind: "rate", read: readText[config.Rate], usage: "bits per second, as 1G or 500M; 0: unlimited"},
		{flag: "queue", field: "queue", kind: "packets", read: readJSON[int], usage: "packets under way at most, more are lost; default 8192"},
		{flag: "down", field: "down", kind: "bool", alone: "true", read: readJSON[bool], usage: "lose everything; --down=false brings the link up"},
		{flag: "seed", field: "seed", kind: "number", read: readJSON[uint64], usage: "begin the decisions anew with this seed"},
	}
}

func readText[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](text string) (any, error) {
	var v T
	err := P(&v).UnmarshalText([]byte(text))
	return v, err
}

func readDuration(text string) (any, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration; write it with its unit, as 10ms", text)
	}
	return d, nil
}

func readJSON[T any](text string) (any, error) {
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("%q: write %s", text, cmp.Or(cli.Kinds[fmt.Sprintf("%T", v)], "a value"))
	}
	return v, nil
}

// completeUplinks offers the uplinks of the NIC.
var completeUplinks = cli.FromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	n, _ := c.NIC(ctx)
	for _, u := range n.Uplinks {
		names = append(names, u.Name)
	}
	return names
})
