package device

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
)

// BenchmarkQuietVF measures one VF's service against its guarantee while 64 others of the same NIC
// flood. All 65 write to the same VFs of another NIC; NICs and bare clients share this process and
// its processors. The quiet VF sends 4 KiB WRITEs, evenly spaced, at its guaranteed rate: a 65th of
// what the flood achieves. Its client and those of the flood sleep while they wait.
//
// credits/quiet_vf_share is the part of that rate that it got, and credits/quiet_vf_p99_over_idle
// its 99th percentile latency, from PostSend to the completion seen, relative to the same stream on
// an idle NIC: both are medians of rounds. credits/quiet_vf_p99_us has both latencies: on an idle
// NIC it is mostly the time that sleepers take to wake up, which differs most between machines.
// TestAQuietVFKeepsItsShareUnderAFlood checks the same against limits in virtual time, where no other process takes the
// processor away.
func BenchmarkQuietVF(b *testing.B) { quietVF(b, 1, "") }

// BenchmarkQuietVFOfAnotherShard is BenchmarkQuietVF with NICs of two shards: the quiet VFs are on
// one, and all that flood are on the other.
func BenchmarkQuietVFOfAnotherShard(b *testing.B) { quietVF(b, 2, "_shards2") }

// quietVF runs the benchmark and reports its figures. ending is appended to their names.
func quietVF(b *testing.B, shards int, ending string) {
	const flooders = 64
	w := newWorldWith(b, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
		quietConfig(i, c, flooders)
		c.NIC.Shards = shards
		for n := range c.Functions[0].VFs {
			v, at := &c.Functions[0].VFs[n], 0
			if v.VF == 1 {
				at = shards - 1
			}
			v.Shard = &at
		}
	})
	quiet := quietPair(b, w, 1, 1)
	var flood []*rig
	for n := range flooders {
		flood = append(flood, quietPair(b, w, 10+n, uint64(100+n)))
	}
	b.ResetTimer()
	figures := map[string][]float64{}
	add := func(name string, v float64) { figures[name] = append(figures[name], v) }
	for range max(b.N, 5) {
		f := startFlood(b, flood)
		time.Sleep(200 * time.Millisecond)
		capacity := received(w, 500*time.Millisecond)
		f.stop()
		every := time.Duration(float64(quietSize) / (capacity / (flooders + 1)) * 1e9)
		time.Sleep(200 * time.Millisecond)
		idle := quiet.paced(b, every, time.Second)
		f = startFlood(b, flood)
		time.Sleep(300 * time.Millisecond)
		busy := quiet.paced(b, every, 2*time.Second)
		f.stop()
		share := min(1, busy.rate*float64(every)/1e9/quietSize)
		add("credits/quiet_vf_share"+ending, share)
		add("credits/quiet_vf_p99_over_idle"+ending, float64(busy.p99)/float64(idle.p99))
		add("credits/quiet_vf_p99"+ending+"_us", float64(busy.p99)/1e3)
		add("credits/quiet_vf_p99"+ending+"_us@idle", float64(idle.p99)/1e3)
		b.Logf("flood alone %.0f MB/s, every %v: idle p50 %v p99 %v, under flood p50 %v p99 %v, share %.3f",
			capacity/1e6, every, idle.p50, idle.p99, busy.p50, busy.p99, share)
	}
	reportMedians(b, figures)
}

const quietSize = 4096

// quietConfig gives a NIC the quiet VF 1 and the flooding ones, all in one tenant. The NIC has a
// limit on what is in flight, and part of it is reserved for the quiet VF.
func quietConfig(i int, c *config.Config, flooders int) {
	pf := &c.Functions[0]
	pf.VFCount = 1000
	c.Credits.NIC.RequestPacketTx, c.Credits.Host.RequestPacketTx = 48, 48
	pf.VFs[0].Guarantee = config.Credits{RequestPacketTx: 8, RequestBufferTx: 1024, RequestPacketRx: 8, NetworkPacketRx: 8}
	for n := range flooders {
		f := pf.VFs[1].Function
		f.Address, f.MAC = netip.AddrFrom4([4]byte{192, 168, byte(101 + i), byte(10 + n)}), config.FunctionMAC(c.CM.Name, 0, uint16(10+n))
		pf.VFs = append(pf.VFs, config.VF{VF: uint16(10 + n), Function: f})
	}
}

// quietPair connects a VF of one NIC to the VF with the same number of the other.
func quietPair(b *testing.B, w *world, vf int, service uint64) *rig {
	b.Helper()
	name := fmt.Sprintf("pf0.vf%d", vf)
	open := func(side int) *endpoint {
		return newEndpoint(b, w.openWith(side, name, guestlib.Options{Memory: 16 << 20}))
	}
	r := &rig{w: w, from: open(0), to: open(1)}
	connect(b, r.from, r.to, service)
	return r
}

// floodRun keeps requests in flight on all rigs.
type floodRun struct {
	end context.CancelFunc
	wg  sync.WaitGroup
}

func startFlood(b *testing.B, rigs []*rig) *floodRun {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &floodRun{end: cancel}
	for _, r := range rigs {
		f.wg.Go(func() { f.run(ctx, b, r) })
	}
	return f
}

func (f *floodRun) run(ctx context.Context, b *testing.B, r *rig) {
	const size, window, every = 1 << 20, 4, 2 // large, so that the NICs are busy and not the clients
	wr := guestlib.SendWR{
		Opcode: guestlib.Write, SGL: []guestlib.SGE{r.from.mr.SGE(0, size)},
		RemoteAddr: r.to.mr.Addr(), RKey: r.to.mr.RKey(),
	}
	var wc [window]guestlib.WC
	for inFlight := 0; ; {
		for n := 1; inFlight+every <= window && ctx.Err() == nil || n > 1; inFlight++ {
			wr.Flags = 0
			if n++; n > every {
				wr.Flags, n = guestlib.Signaled, 1
			}
			if err := r.from.qp.PostSend(&wr); err != nil {
				b.Error(err)
				return
			}
		}
		if inFlight == 0 {
			return
		}
		n, err := r.from.cq.Poll(wc[:])
		if err != nil {
			b.Error(err)
			return
		}
		for i := range wc[:n] {
			if err := wc[i].Err(); err != nil {
				b.Error(err)
				return
			}
		}
		inFlight -= n * every
		if n == 0 {
			if err := r.from.cq.Wait(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	}
}

// received measures how many bytes per second the second NIC places in memory.
func received(w *world, d time.Duration) float64 {
	start, before := time.Now(), w.counter(1, "rdma.bytes_rx")
	time.Sleep(d)
	return float64(w.counter(1, "rdma.bytes_rx")-before) / time.Since(start).Seconds()
}

// stop ends the flood when all its requests are done.
func (f *floodRun) stop() {
	f.end()
	f.wg.Wait()
}

type pacedResult struct {
	rate     float64 // bytes per second
	p50, p99 time.Duration
}

// paced sends one request of quietSize each interval, even if earlier ones are not done, up to the
// queue's length.
func (r *rig) paced(b *testing.B, every, d time.Duration) pacedResult {
	b.Helper()
	wr := guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{r.from.mr.SGE(0, quietSize)},
		RemoteAddr: r.to.mr.Addr(), RKey: r.to.mr.RKey(),
	}
	ctx := testContext(b)
	const window = 64
	var posted, done int
	var at [window]time.Time
	var took []time.Duration
	var wc [window]guestlib.WC
	start := time.Now()
	next := start
	for now := start; now.Sub(start) < d || done < posted; now = time.Now() {
		for now.Sub(start) < d && now.After(next) && posted-done < window {
			at[posted%window] = time.Now()
			if err := r.from.qp.PostSend(&wr); err != nil {
				b.Fatal(err)
			}
			posted++
			next = next.Add(every)
		}
		n, err := r.from.cq.Poll(wc[:])
		if err != nil {
			b.Fatal(err)
		}
		for i := range wc[:n] {
			if err := wc[i].Err(); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(at[done%window]))
			done++
		}
		if n > 0 {
			continue
		}
		wait, cancel := context.WithTimeout(ctx, max(time.Until(next), 10*time.Microsecond))
		_ = r.from.cq.Wait(wait)
		cancel()
	}
	elapsed := time.Since(start)
	slices.Sort(took)
	return pacedResult{rate: float64(done*quietSize) / elapsed.Seconds(), p50: took[len(took)/2], p99: took[len(took)*99/100]}
}
