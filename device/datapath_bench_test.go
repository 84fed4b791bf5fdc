package device

import (
	"crypto/aes"
	"crypto/cipher"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
)

// The data path between two NICs over TAPs on a bridge, sealed, with bare
// clients: underlay MTU 9000, RDMA MTU 4096, software profile. Clients and
// NICs share one process and all its processors; nothing is pinned. Each
// figure is measured with superframes, and again without (…@singly).
//
// Throughput: one QP, a window of requests in flight, every eighth signaled,
// the client asleep while it waits. Latency: one request in flight, the client
// polls. See docs/tuning.md.

// both measures with and without superframes and reports both figures.
func both(b *testing.B, metric string, measure func(b *testing.B, r *rig) float64) {
	b.Helper()
	onRigs(b, metric, []rigKind{{superframes: config.SuperframesAuto, connect: byCM}, {suffix: "@singly", superframes: config.SuperframesOff, connect: byCM}}, measure)
}

// byCM connects two ends by the connection manager.
func byCM(b *testing.B, x, y *endpoint) { connect(b, x, y, 1) }

// rigKind is one of several setups that are compared.
type rigKind struct {
	suffix      string // of the metric's name
	superframes string
	change      func(i int, c *config.Config)
	connect     func(b *testing.B, x, y *endpoint)
}

// turns is how often each kind is measured, alternating with the others, so that other load on the
// machine for a while, or a window that was reduced by a loss, does not decide the comparison.
const turns = 3

// onRigs measures all kinds in turn and reports the medians.
func onRigs(b *testing.B, metric string, kinds []rigKind, measure func(b *testing.B, r *rig) float64) {
	b.Helper()
	values := map[string][]float64{}
	b.StopTimer()
	b.ResetTimer()
	for i := range turns * len(kinds) {
		k := kinds[i%len(kinds)]
		change := k.change
		if change == nil {
			change = func(int, *config.Config) {}
		}
		onTAPs(b, [2]string{k.superframes, k.superframes}, func(w *world) {
			x, y := newDeepEndpoint(b, w.open(0, "pf0.vf1")), newDeepEndpoint(b, w.open(1, "pf0.vf1"))
			k.connect(b, x, y)
			r := &rig{w: w, from: x, to: y, suffix: k.suffix}
			r.stream(b, guestlib.Write, 65536, 200) // windows open, pools fill
			b.StartTimer()                          // includes the time of all counts, or the benchmark would never have enough rounds
			values[metric+k.suffix] = append(values[metric+k.suffix], measure(b, r))
			b.StopTimer()
		}, change)
	}
	reportMedians(b, values)
}

func reportMedians(b *testing.B, values map[string][]float64) {
	b.Helper()
	for name, v := range values {
		slices.Sort(v)
		b.ReportMetric(v[len(v)/2], name)
	}
}

// newDeepEndpoint is newEndpoint with long queues.
func newDeepEndpoint(b testing.TB, d *guestlib.Device) *endpoint {
	b.Helper()
	ctx := testContext(b)
	e := newEndpoint(b, d)
	err := e.qp.Destroy(ctx)
	if err == nil {
		e.cq, err = d.CreateCQ(ctx, 2*maxInFlight)
	}
	if err == nil {
		e.qp, err = e.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: e.cq, SendEntries: maxInFlight, RecvEntries: maxInFlight, Access: allAccess})
	}
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// rig is a client's connection from one NIC to the other.
type rig struct {
	w        *world
	from, to *endpoint
	suffix   string // of its kind
}

const (
	signalEvery = 8
	maxInFlight = 512     // requests
	maxWindow   = 1 << 20 // bytes in flight
)

// stream runs n requests of one size and returns the time they took.
func (r *rig) stream(b testing.TB, op guestlib.Opcode, size, n int) time.Duration {
	b.Helper()
	ctx := testContext(b)
	window := max(4, min(maxInFlight, maxWindow/size))
	every := min(signalEvery, window/2)
	wr := guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{r.from.mr.SGE(0, size)}}
	if op != guestlib.Send {
		wr.RemoteAddr, wr.RKey = r.to.mr.Addr(), r.to.mr.RKey()
	}
	recv := guestlib.RecvWR{SGL: []guestlib.SGE{r.to.mr.SGE(0, size)}}
	var wc [64]guestlib.WC
	reap := func(e *endpoint) int {
		k, err := e.cq.Poll(wc[:])
		if err != nil {
			b.Fatal(err)
		}
		for i := range wc[:k] {
			if err := wc[i].Err(); err != nil {
				b.Fatal(err)
			}
		}
		return k
	}
	receives := 0 // posted and not completed
	start := time.Now()
	posted, done := 0, 0
	for done < n {
		if op == guestlib.Send {
			for receives -= reap(r.to); receives < window; receives++ {
				if err := r.to.qp.PostRecv(&recv); err != nil {
					b.Fatal(err)
				}
			}
		}
		for posted < n && posted-done < window {
			wr.ID, wr.Flags = uint64(posted), 0
			if posted%every == every-1 || posted == n-1 {
				wr.Flags = guestlib.Signaled
			}
			if err := r.from.qp.PostSend(&wr); err != nil {
				b.Fatal(err)
			}
			posted++
		}
		if k := reap(r.from); k > 0 {
			done = int(wc[k-1].ID) + 1
			continue
		}
		if err := r.from.cq.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// medianOf measures in five parts of n, so that short disturbances of the machine do not count.
func medianOf(n int, measure func(n int) float64) float64 {
	const parts = 5
	var v [parts]float64
	for i := range v {
		v[i] = measure(max(1, n/parts))
	}
	slices.Sort(v[:])
	return v[parts/2]
}

func gbps(size, n int, d time.Duration) float64 {
	return float64(size) * float64(n) * 8 / d.Seconds() / 1e9
}

func BenchmarkDataPathWrite64(b *testing.B) {
	both(b, "rdma/write64_msgs_per_s", func(b *testing.B, r *rig) float64 {
		return medianOf(b.N, func(n int) float64 { return float64(n) / r.stream(b, guestlib.Write, 64, n).Seconds() })
	})
}

func benchmarkGoodput(b *testing.B, metric string, op guestlib.Opcode, size int) {
	b.Helper()
	both(b, metric, func(b *testing.B, r *rig) float64 {
		b.SetBytes(int64(size))
		return medianOf(b.N, func(n int) float64 { return gbps(size, n, r.stream(b, op, size, n)) })
	})
}

func BenchmarkDataPathWrite4K(b *testing.B) {
	benchmarkGoodput(b, "rdma/write4k_gbps", guestlib.Write, 4096)
}

func BenchmarkDataPathWrite64K(b *testing.B) {
	benchmarkGoodput(b, "rdma/write64k_gbps", guestlib.Write, 65536)
}

func BenchmarkDataPathWrite1M(b *testing.B) {
	benchmarkGoodput(b, "rdma/write1m_gbps", guestlib.Write, 1<<20)
}

func BenchmarkDataPathRead64K(b *testing.B) {
	benchmarkGoodput(b, "rdma/read64k_gbps", guestlib.Read, 65536)
}

func BenchmarkDataPathSend64K(b *testing.B) {
	benchmarkGoodput(b, "rdma/send64k_gbps", guestlib.Send, 65536)
}

// BenchmarkDataPathOverCipher measures the throughput relative to what the processors could seal
// and open: 64 KiB WRITEs compared with a goroutine per processor that does only AES-GCM on 4 KiB.
func BenchmarkDataPathOverCipher(b *testing.B) {
	both(b, "rdma/write64k_over_cipher", func(b *testing.B, r *rig) float64 {
		n := max(b.N, 1000)
		rate := gbps(65536, n, r.stream(b, guestlib.Write, 65536, n))
		const rounds = 20000
		var wg sync.WaitGroup
		start := time.Now()
		for range runtime.NumCPU() {
			wg.Go(func() { sealOpen(b, rounds) })
		}
		wg.Wait()
		return rate / gbps(4096, rounds*runtime.NumCPU(), time.Since(start))
	})
}

// sealOpen seals and opens 4 KiB n times.
func sealOpen(b *testing.B, n int) {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Error(err)
		return
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		b.Error(err)
		return
	}
	nonce, aad, buf := make([]byte, 12), make([]byte, 48), make([]byte, 4096+16)
	for range n {
		nonce[0]++
		aead.Seal(buf[:0], nonce, buf[:4096], aad)
		if _, err := aead.Open(buf[:0], nonce, buf, aad); err != nil {
			b.Error(err)
			return
		}
	}
}

// BenchmarkDataPathLatency measures one 64 B WRITE at a time, from PostSend to its completion,
// polled.
func BenchmarkDataPathLatency(b *testing.B) {
	p99 := map[string][]float64{}
	both(b, "rdma/write64_lat_p50_us", func(b *testing.B, r *rig) float64 {
		took := r.oneByOne(b, max(b.N, 1000))
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		name := "rdma/write64_lat_p99_us" + r.suffix
		p99[name] = append(p99[name], us(took[len(took)*99/100]))
		return us(took[len(took)/2])
	})
	reportMedians(b, p99)
}

// oneByOne runs n WRITEs of 64 B, each when the one before is complete, and returns their times in
// order of length.
func (r *rig) oneByOne(b *testing.B, n int) []time.Duration {
	b.Helper()
	took := make([]time.Duration, n)
	wr := guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled,
		SGL: []guestlib.SGE{r.from.mr.SGE(0, 64)}, RemoteAddr: r.to.mr.Addr(), RKey: r.to.mr.RKey(),
	}
	var wc [1]guestlib.WC
	for i := range took {
		start := time.Now()
		if err := r.from.qp.PostSend(&wr); err != nil {
			b.Fatal(err)
		}
		for {
			k, err := r.from.cq.Poll(wc[:])
			if err != nil {
				b.Fatal(err)
			}
			if k == 1 {
				break
			}
			runtime.Gosched()
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took
}

// segmentTurns is how often each size is measured. The rates of two NICs differ from those of the next
// two by up to a half, though nothing is changed.
const segmentTurns = 15

// BenchmarkDataPathSegments compares packets that carry 8 KiB of data with those that carry 4 KiB, in
// turn: 1 MiB WRITEs, and what should not change, WRITEs of 64 B. It reports quotients of the better
// quartiles, since whatever disturbs two NICs makes them slower.
func BenchmarkDataPathSegments(b *testing.B) {
	metrics := [3]string{"write1m", "write64", "write64_lat"}
	better := [3]int{segmentTurns * 3 / 4, segmentTurns * 3 / 4, segmentTurns / 4} // the place of the quartile
	for b.Loop() {
		for suffix, superframes := range map[string]string{"": config.SuperframesAuto, "_singly": config.SuperframesOff} {
			var values [3][2][]float64 // of 4 KiB and 8 KiB
			for turn := range segmentTurns {
				for k := range 2 {
					size := (k + turn) % 2 // each is first as often
					for i, v := range segmentValues(b, superframes, 4096<<size) {
						values[i][size] = append(values[i][size], v)
					}
				}
			}
			for i, of := range values {
				slices.Sort(of[0])
				slices.Sort(of[1])
				name := metrics[i] + "_8k_over_4k" + suffix
				b.ReportMetric(of[1][better[i]]/of[0][better[i]], "rdma/"+name)
				b.Logf("%s: 4 KiB %.3g, 8 KiB %.3g", name, of[0], of[1])
			}
		}
	}
	b.ReportMetric(0, "ns/op") // says nothing
}

// segmentValues measures with two NICs whose packets carry so many bytes: the rate of 1 MiB WRITEs in
// Gbit/s, that of 64 B WRITEs in messages a second, and the median time of one of these in ns.
func segmentValues(b *testing.B, superframes string, mtu int) (v [3]float64) {
	onTAPs(b, [2]string{superframes, superframes}, func(w *world) {
		r := &rig{w: w, from: newDeepEndpoint(b, w.open(0, "pf0.vf1")), to: newDeepEndpoint(b, w.open(1, "pf0.vf1"))}
		connect(b, r.from, r.to, 1)
		r.stream(b, guestlib.Write, 65536, 200) // windows open, pools fill
		// Small ones first: losses of large ones leave small windows.
		took := r.oneByOne(b, 2000)
		v[2] = float64(took[len(took)/2])
		v[1] = medianOf(100_000, func(n int) float64 { return float64(n) / r.stream(b, guestlib.Write, 64, n).Seconds() })
		v[0] = medianOf(1000, func(n int) float64 { return gbps(1<<20, n, r.stream(b, guestlib.Write, 1<<20, n)) })
	}, func(_ int, c *config.Config) { c.RDMA.MTU = mtu })
	return v
}
