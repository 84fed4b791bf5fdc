package lab

import (
	"fmt"
	"html/template"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

func graphCommand(lab *string) *cobra.Command {
	var svg string
	c := &cobra.Command{
		Use:   "graph [FILE|NAME]",
		Short: "draw a lab, on the terminal or as SVG",
		Long:  `Draws a lab that is up, or that of a file, which need not be up.`,
		Args:  cli.Arguments(0, 1), ValidArgsFunction: completeShipped,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := planOf(*lab, args)
			if err != nil {
				return err
			}
			if svg == "" {
				p.tree(cmd.OutOrStdout())
				return nil
			}
			var b strings.Builder
			if err := p.draw(&b); err != nil {
				return err
			}
			if svg == "-" {
				_, err = io.WriteString(cmd.OutOrStdout(), b.String())
				return err
			}
			return os.WriteFile(svg, []byte(b.String()), 0o644)
		},
	}
	c.Flags().StringVar(&svg, "svg", "", "write SVG to a `file`; - for standard output")
	return c
}

// planOf returns the plan of a file, or of a lab that is up.
func planOf(lab string, args []string) (*plan, error) {
	if len(args) == 0 {
		return open(lab)
	}
	l, _, err := labfile.Load(args[0])
	if err != nil {
		return nil, err
	}
	return newPlan(l, &state{})
}

// hostsAt returns the hosts of a link.
func (p *plan) hostsAt(k *labfile.Link) (hs []*host) {
	for _, h := range p.hosts {
		if h.Link == k {
			hs = append(hs, h)
		}
	}
	return hs
}

// tree draws the lab with text.
func (p *plan) tree(w io.Writer) {
	fmt.Fprintln(w, p.Name)
	for i := range p.Links {
		k := &p.Links[i]
		line, in := branch(i, len(p.Links))
		fmt.Fprintf(w, "%s link %s, MTU %d\n", line, k.Name, k.MTU)
		hosts := p.hostsAt(k)
		if p.etcd != nil {
			fmt.Fprintf(w, "%s├─ etcd  %s\n", in, etcdAddress)
		}
		for j, h := range hosts {
			line, deeper := branch(j, len(hosts))
			fmt.Fprintf(w, "%s%s host %s  %s%s\n", in, line, h.Name, h.Underlay(), inBrackets(impairWords(p.sends(h))))
			for n, m := range h.Machines {
				line, _ := branch(n, len(h.Machines))
				fmt.Fprintf(w, "%s%s%s %s  %s  %s\n", in, deeper, line, m.Name, m.Tenant, m.Prefix())
			}
		}
	}
}

// branch returns how the i-th of n branches begins, and how what is within it does.
func branch(i, n int) (line, within string) {
	if i == n-1 {
		return "└─", "   "
	}
	return "├─", "│  "
}

func inBrackets(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "  [" + strings.Join(words, ", ") + "]"
}

// Sizes of the drawing, in its own units.
const (
	boxWidth, boxGap    = 170, 20
	linkTop, linkHeight = 40, 30
	hostTop             = linkTop + linkHeight + 50
	headHeight, row     = 46, 26
	margin              = 20
)

// colours tell tenants apart; they are readable on black and on white.
var colours = []string{"#d1495b", "#2e86ab", "#3c896d", "#a05195", "#b8860b", "#5f6caf"}

// A drawing has bars for links with boxes for hosts below, and rows for machines in these.
type (
	drawing struct {
		Name          string
		Width, Height int
		Links         []linkBar
		Hosts         []hostBox
	}
	linkBar struct {
		Text     string
		X, Y     int
		Width, H int
	}
	hostBox struct {
		Name, Address, Impair string
		X, Y, Width, Height   int
		Middle, LinkY         int
		Machines              []machineRow
	}
	machineRow struct {
		Name, Tenant, Address, Colour string
		X, Y, TextY, Width            int
	}
)

// draw writes the lab as SVG.
func (p *plan) draw(w io.Writer) error {
	d := drawing{Name: p.Name}
	x := margin
	for i := range p.Links {
		k, left := &p.Links[i], x
		if p.etcd != nil {
			d.Hosts = append(d.Hosts, hostBox{
				Name: labfile.DirectoryEtcd, Address: etcdAddress, X: x, Y: hostTop, Width: boxWidth, Height: headHeight + 8,
				Middle: x + boxWidth/2, LinkY: linkTop + linkHeight,
			})
			x += boxWidth + boxGap
		}
		for _, h := range p.hostsAt(k) {
			box := hostBox{
				Name: h.Name, Address: h.Underlay(), Impair: strings.Join(impairWords(p.sends(h)), ", "),
				X: x, Y: hostTop, Width: boxWidth, Height: headHeight + row*len(h.Machines) + 8,
				Middle: x + boxWidth/2, LinkY: linkTop + linkHeight,
			}
			for n, m := range h.Machines {
				y := hostTop + headHeight + n*row
				box.Machines = append(box.Machines, machineRow{m.Name, m.Tenant, m.Address.String(), colours[(m.TenantNumber-1)%len(colours)], x + 8, y, y + 15, boxWidth - 16})
			}
			d.Hosts = append(d.Hosts, box)
			d.Height = max(d.Height, box.Y+box.Height+margin)
			x += boxWidth + boxGap
		}
		d.Links = append(d.Links, linkBar{fmt.Sprintf("%s, MTU %d", k.Name, k.MTU), left, linkTop, x - boxGap - left, linkHeight})
	}
	d.Width = x - boxGap + margin
	return picture.Execute(w, d)
}

// The text has the colour of the page around it.
var picture = template.Must(template.New("").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" font-family="sans-serif" font-size="12" fill="currentColor" role="img" aria-label="lab {{.Name}}">
<style>svg { color: #222 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>
<text x="20" y="24" font-size="16">{{.Name}}</text>
{{- range .Links}}
<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="{{.H}}" rx="6" fill="none" stroke="currentColor"/>
<text x="{{.X}}" y="{{.Y}}" dx="10" dy="20">{{.Text}}</text>
{{- end}}
{{- range .Hosts}}
<path d="M{{.Middle}} {{.LinkY}} V{{.Y}}" stroke="currentColor"/>
<text x="{{.Middle}}" y="{{.Y}}" dx="6" dy="-10" font-size="10">{{.Impair}}</text>
<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="{{.Height}}" rx="6" fill="none" stroke="currentColor"/>
<text x="{{.X}}" y="{{.Y}}" dx="10" dy="20" font-weight="bold">{{.Name}}</text>
<text x="{{.X}}" y="{{.Y}}" dx="10" dy="36">{{.Address}}</text>
{{- range .Machines}}
<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="22" rx="4" fill="{{.Colour}}"/>
<text x="{{.X}}" y="{{.TextY}}" dx="8" fill="#fff">{{.Name}} {{.Address}}<title>{{.Tenant}}</title></text>
{{- end}}
{{- end}}
</svg>
`))
