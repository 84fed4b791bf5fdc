package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
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

// Row is what was measured at one size. BW fields are set by bandwidth tests, T fields by latency
// tests.
type Row struct {
	Bytes      int `json:"bytes"`
	Iterations int `json:"iterations"` // of all queue pairs and directions

	PeakMBs float64 `json:"bw_peak_mbs,omitempty"` // MB are 2^20 bytes
	BWMBs   float64 `json:"bw_average_mbs,omitempty"`
	MsgRate float64 `json:"msg_rate_mpps,omitempty"`

	TMin     float64 `json:"t_min_us,omitempty"`
	TMax     float64 `json:"t_max_us,omitempty"`
	TTypical float64 `json:"t_typical_us,omitempty"`
	TAvg     float64 `json:"t_avg_us,omitempty"`
	TStdev   float64 `json:"t_stdev_us,omitempty"`
	T99      float64 `json:"t_99_us,omitempty"`
	T999     float64 `json:"t_99_9_us,omitempty"`

	// Lost are the datagrams among Iterations that did not arrive: sent faster than they were
	// received.
	Lost int `json:"lost,omitempty"`

	// Samples are the latencies in the order measured, in microseconds.
	Samples []float64 `json:"-"`
}

const (
	mb = 1 << 20
	// tail is how many of the longest latencies are left out.
	tail = 2
)

// latencies fills the T fields from times, whose neighbours lie trips apart.
func (r *Row) latencies(times []time.Duration, trips int) {
	r.Samples = make([]float64, len(times)-1)
	for i := range r.Samples {
		r.Samples[i] = (times[i+1] - times[i]).Seconds() * 1e6 / float64(trips)
	}
	s := slices.Clone(r.Samples)
	slices.Sort(s)
	r.TMin, r.TTypical = s[0], s[len(s)/2]
	s = s[:max(1, len(s)-tail)]
	r.TMax = s[len(s)-1]
	var sum, squares float64
	for _, v := range s {
		sum += v
	}
	r.TAvg = sum / float64(len(s))
	for _, v := range s {
		squares += (v - r.TAvg) * (v - r.TAvg)
	}
	r.TStdev = math.Sqrt(squares / float64(len(s)))
	r.T99, r.T999 = percentile(s, 0.99), percentile(s, 0.999)
}

func percentile(sorted []float64, p float64) float64 {
	return sorted[min(len(sorted)-1, int(math.Ceil(float64(len(sorted))*p)))]
}

// rates fills the BW fields: n messages took d. None at all is an error: there is no rate to print.
func (r *Row) rates(n int, d time.Duration) error {
	if n == 0 || d <= 0 {
		return errors.New("no message was completed: the queue pair waits for credit, its rate or the peer (`vnic show qps` on the host says for what)")
	}
	r.Iterations = n
	r.BWMBs = float64(n) * float64(r.Bytes) / mb / d.Seconds()
	r.MsgRate = float64(n) / 1e6 / d.Seconds()
	return nil
}

// peak raises PeakMBs to the best rate of up to window successive messages.
func (r *Row) peak(posted, completed []time.Duration, window int) {
	for i := range posted {
		for j := i; j < min(len(completed), i+window); j++ {
			if d := completed[j] - posted[i]; d > 0 {
				r.PeakMBs = max(r.PeakMBs, float64(j-i+1)*float64(r.Bytes)/mb/d.Seconds())
			}
		}
	}
}

// add makes r the sum of two directions.
func (r *Row) add(other *Row) {
	r.Iterations += other.Iterations
	r.PeakMBs += other.PeakMBs
	r.BWMBs += other.BWMBs
	r.MsgRate += other.MsgRate
}

// fields are the values of a row as they travel between the sides.
func (r *Row) fields() []*float64 {
	return []*float64{&r.PeakMBs, &r.BWMBs, &r.MsgRate, &r.TMin, &r.TMax, &r.TTypical, &r.TAvg, &r.TStdev, &r.T99, &r.T999}
}

func (r *Row) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Iterations))
	for _, f := range r.fields() {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(*f))
	}
	return b
}

func (r *Row) unmarshal(b []byte) {
	r.Iterations = int(binary.LittleEndian.Uint64(b))
	for i, f := range r.fields() {
		*f = math.Float64frombits(binary.LittleEndian.Uint64(b[8*(i+1):]))
	}
}
