package perf

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report prints what perftest's programs print, in their columns.
type Report struct {
	W         io.Writer
	Test      Test
	Gbits     bool // bandwidth in 10^9 bits per second, not 2^20 bytes
	Unsorted  bool // every latency, in the order measured
	Histogram bool // every latency, sorted
}

var rule = strings.Repeat("-", 87)

// Header prints what is measured, and the names of the columns.
func (p *Report) Header(h Header) {
	role := "client"
	if h.Server {
		role = "server"
	}
	fmt.Fprintf(p.W, "%s\n                    %s\n", rule, h.Title())
	fmt.Fprintf(p.W, " %-31s Device         : %s\n", "Role            : "+role, h.Device)
	fmt.Fprintf(p.W, " %-31s Connection type: %s\n", fmt.Sprintf("Number of qps   : %d", h.QPs), connection(h.Datagrams))
	fmt.Fprintf(p.W, " %-31s CQ Moderation  : %d\n", fmt.Sprintf("TX depth        : %d", h.TxDepth), h.CQMod)
	fmt.Fprintf(p.W, " %-31s Max inline data: %d[B]\n", fmt.Sprintf("Mtu             : %d[B]", h.MTU), h.Inline)
	fmt.Fprintf(p.W, " %-31s Doorbells by   : %s\n", "Completions     : "+how(h.Events), h.Path)
	if h.Bidirectional {
		fmt.Fprintf(p.W, " Bidirectional   : ON\n")
	}
	if h.Perftest != "" {
		fmt.Fprintf(p.W, " Other end       : perftest %s\n", h.Perftest)
	}
	fmt.Fprintf(p.W, "%s\n local address: GID %s\n remote address: GID %s\n%s\n%s\n", rule, h.Local, h.Remote, rule, p.columns())
}

func connection(datagrams bool) string {
	if datagrams {
		return "UD"
	}
	return "RC"
}

func how(events bool) string {
	if events {
		return "events"
	}
	return "polled"
}

func (p *Report) columns() string {
	switch {
	case p.Test.Latency:
		return " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
	case p.Gbits:
		return " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
	}
	return " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
}

// Row prints one size.
func (p *Report) Row(r *Row) {
	if !p.Test.Latency {
		peak, average := r.PeakMBs, r.BWMBs
		if p.Gbits {
			peak, average = peak*mb*8/1e9, average*mb*8/1e9
		}
		fmt.Fprintf(p.W, " %-7d    %-10d       %-7.2f            %-7.2f\t\t   %-7.6f\n", r.Bytes, r.Iterations, peak, average, r.MsgRate)
		if r.Lost > 0 {
			fmt.Fprintf(p.W, " %d of %d datagrams were lost: the receiver had no receive for them\n", r.Lost, r.Iterations)
		}
		return
	}
	samples := r.Samples
	if p.Histogram {
		samples = slices.Sorted(slices.Values(samples))
	}
	if p.Histogram || p.Unsorted {
		fmt.Fprintln(p.W, "#, usec")
		for i, v := range samples {
			fmt.Fprintf(p.W, "%d, %g\n", i+1, v)
		}
	}
	fmt.Fprintf(p.W, " %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f\n",
		r.Bytes, r.Iterations, r.TMin, r.TMax, r.TTypical, r.TAvg, r.TStdev, r.T99, r.T999)
}

// End closes the report.
func (p *Report) End() { fmt.Fprintln(p.W, rule) }
