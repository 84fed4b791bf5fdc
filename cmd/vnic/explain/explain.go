package explain

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/docs"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func Command() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain NAME",
		Short: "what a rule (DRV-602), status, counter, fault or metric means, and what to do",
		Long: `Prints what the documentation says of a name that vnic prints or a driver sees:
a rule of docs/abi, a status of a completion or command, an event, a fault, a counter
or a metric. No NIC has to run.`,
		Example: "  vnic explain DRV-602\n  vnic explain WCLocProtErr\n  vnic explain underlay.drop_no_route",
		Args:    cli.Arguments(1, 1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names(explained()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := explain(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), list)
			}
			for i := range list {
				list[i].print(cmd.OutOrStdout(), i > 0)
			}
			return nil
		},
	}
	cli.JSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

// explanation is the text about a name on a page of the documentation.
type explanation struct {
	Name  string `json:"name"`
	Page  string `json:"page"`  // file below docs
	Under string `json:"under"` // the heading above it
	Text  string `json:"text"`
}

func (e *explanation) print(w io.Writer, further bool) {
	if further {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%s (docs/%s, %s)\n%s\n", e.Name, e.Page, e.Under, e.Text)
}

// explain returns the explanations of a name. It ignores upper and lower case.
func explain(name string) (list []explanation, err error) {
	all := explained()
	if port, of := strings.CutPrefix(name, "port."); of { // a port's counter
		if i := strings.LastIndexByte(port, '.'); i > 0 {
			name = "port.NAME" + port[i:]
		}
	}
	for _, e := range all {
		begin, family := strings.CutSuffix(e.Name, "…")
		if sameName(e.Name, name) || family && begin != "" && strings.HasPrefix(name, begin) {
			list = append(list, e)
		}
	}
	switch {
	case len(list) > 0:
		return list, nil
	case rule.MatchString(name):
		return nil, fmt.Errorf("there is no rule %s in docs/abi/index.md", strings.ToUpper(name))
	}
	if n := cli.Nearest(name, names(all)); n != "" {
		return nil, fmt.Errorf("%q is not known; did you mean %q?", name, n)
	}
	return nil, fmt.Errorf("%q is not known: give a rule as DRV-602, or a status, counter, fault or metric as vnic prints it; `vnic show counters` lists counters", name)
}

// sameName compares names tolerantly: drv602 matches DRV-602, and a status matches without the
// prefix of its name.
func sameName(known, asked string) bool {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	k, a := plain(known), plain(asked)
	return k == a || slices.Contains([]string{"status" + a, "wc" + a, "fault" + a, "event" + a}, k)
}

func names(list []explanation) (names []string) {
	for _, e := range list {
		if !strings.HasSuffix(e.Name, "…") {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// explained returns all explanations of the pages.
func explained() (list []explanation) {
	for _, page := range []string{"abi/index.md", "troubleshooting.md", "faults.md", "metrics.md", "abi/reference.md"} {
		b, err := docs.Pages.ReadFile(page)
		if err != nil {
			panic(err) // it is part of this program
		}
		if page == "abi/index.md" {
			list = append(list, clausesOf(page, string(b))...)
			continue
		}
		for _, e := range rowsOf(page, string(b)) {
			// The reference also lists statuses, but says less about them.
			if page != "abi/reference.md" || !slices.ContainsFunc(list, func(x explanation) bool { return x.Name == e.Name }) {
				list = append(list, e)
			}
		}
	}
	for name, c := range counters.All() {
		if c.Help != "" && !slices.ContainsFunc(list, func(x explanation) bool { return x.Name == name }) {
			list = append(list, explanation{Name: name, Page: "troubleshooting.md", Under: "Counters", Text: c.Help})
		}
	}
	return list
}

var (
	rule    = regexp.MustCompile(`(?i)^(DRV|DEV)-?[0-9]+$`)
	clause  = regexp.MustCompile(`\*\*((?:DRV|DEV)-[0-9]+)\*\*`)
	link    = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	heading = regexp.MustCompile(`^#+ (.*)`)
	code    = regexp.MustCompile("`([^`]+)`")
)

// clausesOf returns the rules of the ABI. A rule ends at the next one, or at the end of its list
// item.
func clausesOf(page, text string) (list []explanation) {
	under := ""
	for _, part := range strings.Split(text, "\n\n") {
		if h := heading.FindStringSubmatch(part); h != nil {
			under = h[1]
		}
		for _, item := range strings.Split("\n"+part, "\n* ") {
			at := clause.FindAllStringSubmatchIndex(item, -1)
			for i, m := range at {
				end := len(item)
				if i+1 < len(at) {
					end = at[i+1][0]
				}
				e := explanation{Name: item[m[2]:m[3]], Page: page, Under: under, Text: plainText(item[m[1]:end])}
				if broken := brokenBy(e.Name); broken != "" {
					e.Text += "\nBroken by: " + broken + "."
				}
				list = append(list, e)
			}
		}
	}
	return list
}

// brokenBy returns a short description of the driver's mistake that breaks a rule.
func brokenBy(name string) string {
	for _, i := range abi.Clauses {
		if i.Clause.String() == name {
			return i.Doc
		}
	}
	return ""
}

// rowsOf returns the rows of tables whose first column is a name in code style.
func rowsOf(page, text string) (list []explanation) {
	under := ""
	var titles []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if h := heading.FindStringSubmatch(line); h != nil {
			under = h[1]
		}
		if !strings.HasPrefix(line, "|") {
			titles = nil
			continue
		}
		cells := cellsOf(line)
		switch {
		case titles == nil:
			titles = cells
			continue
		case strings.Trim(line, "|-: ") == "":
			continue
		}
		at := slices.IndexFunc(cells, func(c string) bool { return strings.HasPrefix(c, "`") })
		if at < 0 || at > 2 {
			continue
		}
		var said []string
		for i, c := range cells {
			if i != at && i < len(titles) && c != "" {
				said = append(said, cmp.Or(titles[i], "what")+": "+plainText(c))
			}
		}
		for _, n := range code.FindAllStringSubmatch(cells[at], -1) {
			if !strings.ContainsAny(n[1], " /{") && len(said) > 0 {
				list = append(list, explanation{Name: n[1], Page: page, Under: under, Text: strings.Join(said, "\n")})
			}
		}
	}
	return list
}

func cellsOf(line string) (cells []string) {
	for _, c := range strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|") {
		cells = append(cells, strings.ReplaceAll(strings.TrimSpace(c), "\x00", "|"))
	}
	return cells
}

// plainText returns the text of a page without Markdown's markup, each paragraph in one line.
func plainText(s string) string {
	s = link.ReplaceAllString(s, "$1")
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "**", "")), " ")
}
