package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// report prints the demo's progress, and the table at the end.
type report struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
	rows  []reportRow
	plain []streamRow
	verbs []programRow
}

// programRow is the result of a verbs program.
type programRow struct {
	who string
	workload.Program
}

// streamRow is one measurement of plain IP.
type streamRow struct {
	who string
	workload.Stream
}

// reportRow is one line of the table.
type reportRow struct {
	who string
	workload.Result
}

func newReport(w io.Writer) *report { return &report{w: w, start: time.Now()} }

// step prints one line of progress.
func (r *report) step(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.w, "%6.1fs  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// follow reads one guest's lines until the guest is done. It returns an error if the stream ends
// before that.
func (r *report) follow(who string, lines io.Reader) error {
	sc := bufio.NewScanner(lines)
	sc.Buffer(make([]byte, 0, 4096), 1<<20)
	for sc.Scan() {
		line, err := workload.DecodeOutput(sc.Bytes())
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
		switch line.Kind {
		case workload.KindProgress:
			r.step("%s  %s", who, line.Text)
		case workload.KindResult:
			r.result(who, *line.Result)
		case workload.KindStream:
			r.stream(who, *line.Stream)
		case workload.KindProgram:
			r.program(who, *line.Program)
		case workload.KindDone:
			return nil
		case workload.KindError:
			return fmt.Errorf("%s: %s", who, line.Text)
		}
	}
	return errors.Join(fmt.Errorf("%s: ended before its work was done", who), sc.Err())
}

// finish prints the tables. It returns an error if a row was not verified.
func (r *report) finish() error {
	var errs []error
	if bad := r.table() + r.streams(); bad > 0 {
		errs = append(errs, fmt.Errorf("%d rows were not verified", bad))
	}
	if failed := r.programs(); failed > 0 {
		errs = append(errs, fmt.Errorf("%d verbs programs failed", failed))
	}
	return errors.Join(errs...)
}

// result prints and keeps one finished row.
func (r *report) result(who string, res workload.Result) {
	verdict := "verified"
	if !res.Verified {
		verdict = "NOT VERIFIED"
	}
	r.step("%s  %-10s %9s ×%-3d %s", who, res.Op, cli.Bytes(res.Size), res.Count, verdict)
	r.mu.Lock()
	r.rows = append(r.rows, reportRow{who, res})
	r.mu.Unlock()
}

// stream prints and keeps a finished measurement of plain IP.
func (r *report) stream(who string, s workload.Stream) {
	r.step("%s  iperf3 %s %.0f Mbit/s for %.0f s, %s", who, s.Protocol, s.Mbps, s.Seconds, harm(s))
	r.mu.Lock()
	r.plain = append(r.plain, streamRow{who, s})
	r.mu.Unlock()
}

// program prints and keeps the result of a verbs program.
func (r *report) program(who string, p workload.Program) {
	r.step("%s  %s: %s", who, p.Command, didOrNot(p))
	r.mu.Lock()
	r.verbs = append(r.verbs, programRow{who, p})
	r.mu.Unlock()
}

// didOrNot describes what a program did, or why it failed.
func didOrNot(p workload.Program) string {
	if p.Did == "" {
		return "FAILED: " + p.Problem
	}
	return p.Did
}

// programs prints the results of the verbs programs, if there are any, and returns how many failed.
func (r *report) programs() (bad int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.verbs) == 0 {
		return 0
	}
	fmt.Fprintln(r.w, "Debian's programs, unmodified, over the Linux driver:")
	tw := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', 0)
	for _, p := range r.verbs {
		if p.Did == "" {
			bad++
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", p.who, p.Command, didOrNot(p.Program))
	}
	tw.Flush()
	fmt.Fprintln(r.w)
	return bad
}

// harm describes the losses of a stream.
func harm(s workload.Stream) string {
	if s.Protocol == "TCP" {
		return fmt.Sprintf("%d segments sent again", s.Resent)
	}
	return fmt.Sprintf("%.1f %% lost", s.LostPct)
}

// streams prints the measurements of plain IP, if there are any, and returns how
// many carried nothing.
func (r *report) streams() (bad int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.plain) == 0 {
		return 0
	}
	tw := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "from\tplain IP, at the same time\tbytes\trate\tharm\t")
	fmt.Fprintln(tw, strings.Repeat("-\t", 5))
	for _, s := range r.plain {
		if s.Bytes == 0 {
			bad++
		}
		fmt.Fprintf(tw, "%s\tiperf3 %s\t%.1f MB\t%.0f Mbit/s\t%s\t\n", s.who, s.Protocol, float64(s.Bytes)/1e6, s.Mbps, harm(s.Stream))
	}
	tw.Flush()
	fmt.Fprintln(r.w)
	return bad
}

// table prints all rows; it returns how many were not verified.
func (r *report) table() (bad int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(r.w)
	tw := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "from\toperation\tsize\tcount\tlatency p50\tmean\trate\tverified\t")
	fmt.Fprintln(tw, strings.Repeat("-\t", 8))
	for _, row := range r.rows {
		yes := "yes"
		if !row.Verified {
			yes = "NO"
			bad++
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t\n",
			row.who, row.Op, cli.Bytes(row.Size), row.Count, micros(row.P50US), micros(row.MeanUS), rate(row.Result), yes)
	}
	tw.Flush()
	fmt.Fprintln(r.w)
	return bad
}

// rate formats a result: operations per second for small messages, bytes per second for large ones.
func rate(r workload.Result) string {
	if r.Size < 4096 {
		return fmt.Sprintf("%.0f /s", 1e6/r.MeanUS)
	}
	return fmt.Sprintf("%.1f MB/s", r.MBps)
}

func micros(us float64) string {
	if us >= 10000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f µs", us)
}
