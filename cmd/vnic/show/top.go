package show

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
)

func TopCommand() *cobra.Command {
	var o cli.NIC
	var every time.Duration
	var frames int
	top := &cobra.Command{
		Use:   "top",
		Short: "live view of a running NIC: rates, functions, credits",
		Long: `Shows the rates of the NIC, the functions that send most, and where credit is
short. It redraws the view every interval until interrupted. If the output is not
a terminal, it prints one view of one interval and ends (--frames for more). With
--json it prints a line for each interval.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return cli.Usagef("--interval %v is too short; use 100ms or more", every)
			}
			if o.JSON {
				return runTop(cmd.Context(), o.Client(), every, frames, func(was, is *sample) error {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(measure(was, is))
				})
			}
			screen := newScreen(cmd.OutOrStdout())
			defer screen.leave()
			if frames == 0 && !screen.terminal {
				frames = 1
			}
			return runTop(cmd.Context(), o.Client(), every, frames, func(was, is *sample) error {
				screen.draw(func(w io.Writer, fit size) { view(w, was, is, fit) })
				return nil
			})
		},
	}
	o.SocketFlag(top.Flags())
	top.Flags().BoolVar(&o.JSON, "json", false, "print a line of JSON for each interval")
	top.Flags().DurationVarP(&every, "interval", "i", time.Second, "time between two views")
	top.Flags().IntVarP(&frames, "frames", "n", 0, "views to draw; 0: until interrupted")
	return top
}

// sample is the state of a NIC at one moment. A view is made of two samples.
type sample struct {
	at        time.Time
	nic       control.NIC
	counters  control.Counters
	functions []control.Function
	credits   []control.CreditNode
}

func takeSample(ctx context.Context, c *control.Client) (s sample, err error) {
	s.at = time.Now()
	if s.nic, err = c.NIC(ctx); err != nil {
		return s, err
	}
	if s.counters, err = c.Counters(ctx); err != nil {
		return s, err
	}
	if s.functions, err = c.Functions(ctx); err != nil {
		return s, err
	}
	s.credits, err = c.Credits(ctx)
	return s, err
}

func runTop(ctx context.Context, c *control.Client, every time.Duration, frames int, show func(was, is *sample) error) error {
	before, err := takeSample(ctx, c)
	if err != nil {
		return err
	}
	for n := 0; frames == 0 || n < frames; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		now, err := takeSample(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := show(&before, &now); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// size is the size of a screen in characters.
type size struct{ lines, columns int }

// unlimited is the size for output that is not a terminal.
var unlimited = size{1 << 20, 1 << 20}

// view writes one view that fits the screen.
func view(w io.Writer, was, is *sample, fit size) {
	head := fold(topHead(was, is), fit.columns)
	_, _ = io.WriteString(w, head+"\n")
	_, _ = io.WriteString(w, topFunctions(was, is, size{fit.lines - strings.Count(head, "\n") - 1, fit.columns}))
}

// topHead returns the lines about the NIC as a whole.
func topHead(was, is *sample) string {
	w := new(strings.Builder)
	seconds := max(is.at.Sub(was.at).Seconds(), 1e-3)
	rate := func(name string) float64 {
		if is.counters[name] < was.counters[name] {
			return 0
		}
		return float64(is.counters[name]-was.counters[name]) / seconds
	}
	up := 0
	for _, p := range is.nic.Peers {
		if p.Up {
			up++
		}
	}
	fmt.Fprintf(w, "vnic %s  host %d  up %s  peers %d of %d  connections %d\n", is.nic.Name, is.nic.Host,
		(time.Duration(is.nic.UptimeMS) * time.Millisecond).Round(time.Second), up, len(is.nic.Peers), is.counters["falcon.conns"])
	fmt.Fprintf(w, "packets/s  in %s  out %s   data  in %sbit/s  out %sbit/s   sent again %s/s  waited for credit %s/s\n",
		si(rate("shard.rx_packets")), si(rate("shard.tx_packets")), si(8*rate("rdma.bytes_rx")), si(8*rate("rdma.bytes_tx")),
		si(rate("falcon.timeout_retransmits")+rate("falcon.early_retransmits")), si(rate("rdma.credit_waits")))
	if is.counters["gateway.from_port_bytes"]+is.counters["gateway.to_port_bytes"] > 0 {
		fmt.Fprintf(w, "plain IP   from ports %sbit/s  to ports %sbit/s   sealed packets/s  in %s  out %s\n",
			si(8*rate("gateway.from_port_bytes")), si(8*rate("gateway.to_port_bytes")), si(rate("gateway.tunnel_rx_packets")), si(rate("gateway.tunnel_tx_packets")))
	}
	var drops []string
	for name := range is.counters {
		if counters.IsDrop(name) && rate(name) > 0 {
			drops = append(drops, fmt.Sprintf("%s %s/s", name, si(rate(name))))
		}
	}
	slices.Sort(drops)
	fmt.Fprintf(w, "drops      %s\n", cmp.Or(strings.Join(drops, "  "), "none"))
	return w.String()
}

// topColumn is a column of the table of functions. If not all columns fit, those with the highest
// numbers are left out first.
type topColumn struct {
	title string
	spare int
	cell  func(f *control.Function) string
}

// topFunctions returns the table of functions, sorted by their traffic.
func topFunctions(was, is *sample, fit size) string {
	seconds := max(is.at.Sub(was.at).Seconds(), 1e-3)
	earlier := map[string]control.Function{}
	for _, f := range was.functions {
		earlier[f.ID] = f
	}
	sent := func(f *control.Function) float64 {
		return float64(f.TxBytes-min(earlier[f.ID].TxBytes, f.TxBytes)) / seconds
	}
	got := func(f *control.Function) float64 {
		return float64(f.RxBytes-min(earlier[f.ID].RxBytes, f.RxBytes)) / seconds
	}
	credits := map[string]control.CreditNode{}
	for _, n := range is.credits {
		credits[n.Name] = n
	}
	held := func(f *control.Function, counter string) string {
		n := credits[f.ID]
		return fmt.Sprintf("%d/%d", n.InUse[counter], n.Limit[counter])
	}
	columns := []topColumn{
		{"FUNCTION", 0, func(f *control.Function) string { return f.ID }},
		{"STATE", 1, func(f *control.Function) string { return f.State }},
		{"LINK", 4, func(f *control.Function) string { return cli.UpDown(f.LinkUp) }},
		{"OUT BIT/S", 0, func(f *control.Function) string { return si(8 * sent(f)) }},
		{"IN BIT/S", 0, func(f *control.Function) string { return si(8 * got(f)) }},
		{"QP", 3, func(f *control.Function) string { return fmt.Sprint(f.QPs) }},
		{"REQ-PKT-TX", 5, func(f *control.Function) string { return held(f, "req-pkt-tx") }},
		{"DATA-PKT-TX", 6, func(f *control.Function) string { return held(f, "data-pkt-tx") }},
		{"FAULT", 2, func(f *control.Function) string { return f.Fault }},
	}
	fs := slices.Clone(is.functions)
	slices.SortStableFunc(fs, func(a, b control.Function) int { return cmp.Compare(sent(&b)+got(&b), sent(&a)+got(&a)) })
	for spare := 6; ; spare-- {
		text := topTable(columns, fs, fit.lines-2)
		if spare == 0 || width(text) <= fit.columns {
			return text
		}
		columns = slices.DeleteFunc(columns, func(c topColumn) bool { return c.spare == spare })
	}
}

func topTable(columns []topColumn, fs []control.Function, rows int) string {
	b := new(strings.Builder)
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(cell func(c *topColumn) string) {
		var cells []string
		for i := range columns {
			cells = append(cells, cell(&columns[i]))
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	line(func(c *topColumn) string { return c.title })
	for i := range fs {
		if i >= max(rows, 1) {
			fmt.Fprintf(tw, "… %d more\n", len(fs)-i)
			break
		}
		line(func(c *topColumn) string { return c.cell(&fs[i]) })
	}
	_ = tw.Flush()
	return b.String()
}

// width returns the length of the longest line. A last column of text does not count, because it is
// cut.
func width(text string) (n int) {
	header, _, _ := strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		n = max(n, len([]rune(strings.TrimRight(line, " \n"))))
	}
	if at := strings.Index(header, "FAULT"); at >= 0 {
		n = min(n, at+len("FAULT"))
	}
	return n
}

// fold breaks lines that are too long, at places with two or more spaces.
func fold(text string, columns int) string {
	b := new(strings.Builder)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		used := 0
		for len(line) > 0 {
			part := line
			if i := strings.Index(strings.TrimLeft(line, " "), "  "); i >= 0 {
				part = line[:i+len(line)-len(strings.TrimLeft(line, " "))]
			}
			line = line[len(part):]
			if n := len([]rune(part)); used > 0 && used+n > columns {
				part = "  " + strings.TrimLeft(part, " ")
				_ = b.WriteByte('\n')
				used = 0
			}
			_, _ = b.WriteString(part)
			used += len([]rune(part))
		}
		_ = b.WriteByte('\n')
	}
	return b.String()
}

// si formats a number with three digits and an SI prefix: 1.23k, 45.6M.
func si(v float64) string {
	for _, u := range []struct {
		at   float64
		unit string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.at {
			return fmt.Sprintf("%.3g%s", v/u.at, u.unit)
		}
	}
	return fmt.Sprintf("%.3g", v)
}

// screen draws views. On a terminal each view replaces the previous one; elsewhere each follows it.
type screen struct {
	out      io.Writer
	terminal bool
	fd       int
	drawn    bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, terminal: cli.IsTerminal(out) && os.Getenv("TERM") != "dumb"}
	if s.terminal {
		s.fd = int(out.(*os.File).Fd())
	}
	return s
}

// ANSI sequences: switch to the alternate screen and back, cursor off and on, home, clear to the
// end of the line and of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

func (s *screen) draw(view func(w io.Writer, fit size)) {
	if !s.terminal {
		view(s.out, unlimited)
		return
	}
	lines, columns := 24, 80
	if size, err := unix.IoctlGetWinsize(s.fd, unix.TIOCGWINSZ); err == nil && size.Row > 0 && size.Col > 0 {
		lines, columns = int(size.Row), int(size.Col)
	}
	var b, frame strings.Builder
	view(&b, size{lines, columns})
	if !s.drawn {
		s.drawn = true
		frame.WriteString(enterScreen)
	}
	frame.WriteString(cursorHome)
	for i, line := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
		if i == lines {
			break
		}
		if i > 0 {
			frame.WriteString("\r\n")
		}
		frame.WriteString(cut(line, columns))
		frame.WriteString(clearLine)
	}
	frame.WriteString(clearRest)
	_, _ = io.WriteString(s.out, frame.String())
}

func (s *screen) leave() {
	if s.drawn {
		_, _ = io.WriteString(s.out, leaveScreen)
	}
}

// cut shortens a line to so many characters and replaces control characters by "?".
func cut(line string, columns int) string {
	r := []rune(line)
	r = r[:min(len(r), columns)]
	for i, c := range r {
		if c < ' ' || c == 0x7f {
			r[i] = '?'
		}
	}
	return string(r)
}

// rates is a line of `vnic top --json`: the rates of one interval.
type rates struct {
	At        time.Time            `json:"at"`
	Seconds   float64              `json:"seconds"` // length of the interval
	NIC       string               `json:"nic"`
	Host      uint8                `json:"host"`
	Counters  map[string]float64   `json:"counters_per_second"` // those that changed
	Functions []functionRates      `json:"functions"`
	Credits   []control.CreditNode `json:"credits"`
}

type functionRates struct {
	ID     string  `json:"id"`
	State  string  `json:"state"`
	LinkUp bool    `json:"link_up"`
	TxBPS  float64 `json:"tx_bits_per_second"`
	RxBPS  float64 `json:"rx_bits_per_second"`
	QPs    int     `json:"qps"`
	Fault  string  `json:"fault,omitempty"`
}

// measure returns the rates between two samples.
func measure(was, is *sample) rates {
	seconds := max(is.at.Sub(was.at).Seconds(), 1e-3)
	r := rates{At: is.at, Seconds: seconds, NIC: is.nic.Name, Host: is.nic.Host, Counters: map[string]float64{}, Functions: []functionRates{}, Credits: is.credits}
	for name, n := range is.counters {
		if n > was.counters[name] {
			r.Counters[name] = float64(n-was.counters[name]) / seconds
		}
	}
	earlier := map[string]control.Function{}
	for _, f := range was.functions {
		earlier[f.ID] = f
	}
	for _, f := range is.functions {
		e := earlier[f.ID]
		r.Functions = append(r.Functions, functionRates{
			ID: f.ID, State: f.State, LinkUp: f.LinkUp, QPs: f.QPs, Fault: f.Fault,
			TxBPS: 8 * float64(f.TxBytes-min(e.TxBytes, f.TxBytes)) / seconds,
			RxBPS: 8 * float64(f.RxBytes-min(e.RxBytes, f.RxBytes)) / seconds,
		})
	}
	return r
}
