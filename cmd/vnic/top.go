package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/control"
)

func topCommand() *cobra.Command {
	var socket string
	var every time.Duration
	var frames int
	top := &cobra.Command{
		Use:   "top",
		Short: "live view of a running NIC: rates, functions, credits",
		Long: `Shows what passes, functions by what they send, and where credit is short, and
draws it anew every interval until interrupted. When the output is no terminal it
prints one view, of one interval, and ends (--frames for more).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return fmt.Errorf("--interval %v: the NIC would be asked all the time; use 100ms or more", every)
			}
			screen := newScreen(cmd.OutOrStdout())
			if frames == 0 && !screen.terminal {
				frames = 1
			}
			return runTop(cmd.Context(), control.NewClient(socket), screen, every, frames)
		},
	}
	top.Flags().StringVarP(&socket, "socket", "s", "/run/vnic/control.sock", socketHelp)
	top.Flags().DurationVarP(&every, "interval", "i", time.Second, "between two views")
	top.Flags().IntVarP(&frames, "frames", "n", 0, "views to draw; 0: until interrupted")
	return top
}

// sample is what one view is made of.
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

func runTop(ctx context.Context, c *control.Client, screen *screen, every time.Duration, frames int) error {
	before, err := takeSample(ctx, c)
	if err != nil {
		return err
	}
	defer screen.leave()
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
		screen.draw(func(w io.Writer, lines int) { view(w, &before, &now, lines) })
		before = now
	}
	return nil
}

// view writes one view of at most so many lines.
func view(w io.Writer, was, is *sample, lines int) {
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
	var drops []string
	for name := range is.counters {
		if room, what, _ := strings.Cut(name, "."); (room == "drop" || strings.HasPrefix(what, "drop_")) && rate(name) > 0 {
			drops = append(drops, fmt.Sprintf("%s %s/s", name, si(rate(name))))
		}
	}
	slices.Sort(drops)
	fmt.Fprintf(w, "drops      %s\n\n", or(strings.Join(drops, "  "), "none"))

	earlier := map[string]control.Function{}
	for _, f := range was.functions {
		earlier[f.ID] = f
	}
	sent := func(f control.Function) float64 {
		return float64(f.TxBytes-min(earlier[f.ID].TxBytes, f.TxBytes)) / seconds
	}
	got := func(f control.Function) float64 {
		return float64(f.RxBytes-min(earlier[f.ID].RxBytes, f.RxBytes)) / seconds
	}
	credits := map[string]control.CreditNode{}
	for _, n := range is.credits {
		credits[n.Name] = n
	}
	fs := slices.Clone(is.functions)
	slices.SortStableFunc(fs, func(a, b control.Function) int { return cmp.Compare(sent(b)+got(b), sent(a)+got(a)) })
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FUNCTION\tSTATE\tLINK\tOUT BIT/S\tIN BIT/S\tQP\tREQ-PKT-TX\tDATA-PKT-TX\tFAULT")
	for i, f := range fs {
		if i >= max(lines-6, 1) {
			fmt.Fprintf(tw, "… %d more\n", len(fs)-i)
			break
		}
		held := func(counter string) string {
			n := credits[f.ID]
			return fmt.Sprintf("%d/%d", n.InUse[counter], n.Limit[counter])
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", f.ID, f.State, upDown(f.LinkUp), si(8*sent(f)), si(8*got(f)), f.QPs, held("req-pkt-tx"), held("data-pkt-tx"), f.Fault)
	}
	_ = tw.Flush()
}

// si writes a number with three digits and a unit: 1.23k, 45.6M.
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

// screen draws views over one another on a terminal, one after the other
// elsewhere.
type screen struct {
	out      io.Writer
	terminal bool
	fd       int
	drawn    bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok {
		s.fd = int(f.Fd())
		_, err := unix.IoctlGetTermios(s.fd, unix.TCGETS)
		s.terminal = err == nil && os.Getenv("TERM") != "dumb"
	}
	return s
}

// ANSI: other screen and back, cursor off and on, home, clear to the end of the
// line and of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

func (s *screen) draw(view func(w io.Writer, lines int)) {
	if !s.terminal {
		view(s.out, 1<<20)
		return
	}
	lines, columns := 24, 80
	if size, err := unix.IoctlGetWinsize(s.fd, unix.TIOCGWINSZ); err == nil && size.Row > 0 && size.Col > 0 {
		lines, columns = int(size.Row), int(size.Col)
	}
	var b, frame strings.Builder
	view(&b, lines)
	if !s.drawn {
		s.drawn = true
		frame.WriteString(enterScreen)
	}
	frame.WriteString(home)
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

// cut shortens a line to so many characters, without what a terminal would
// obey.
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
