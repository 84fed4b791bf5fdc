package device

import (
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
)

const burstSize = 16 // requests, of which the last is signaled

// BenchmarkDataPathQPs10k sends 64 B WRITEs over 10 000 QPs in turn, in bursts of 16, and for
// comparison over one QP: 32 bursts in flight, the client asleep while it waits.
func BenchmarkDataPathQPs10k(b *testing.B) {
	const qps = 10000
	b.StopTimer()
	b.ResetTimer()
	onTAPs(b, [2]string{config.SuperframesAuto, config.SuperframesAuto}, func(w *world) {
		from, to := newCrowd(b, w, 0), newCrowd(b, w, 1)
		from.join(b, to, 1, maxInFlight)
		from.join(b, to, qps, burstSize)
		one, all := from.qps[:1], from.qps[1:]
		from.bursts(b, to, one, 20000)
		from.bursts(b, to, all, qps) // every QP has its memory
		const rounds = 8             // in turn, so that other load on the machine affects both
		n := max(b.N/burstSize/rounds, 100)
		var tookOne, tookAll time.Duration
		b.StartTimer()
		for range rounds {
			tookOne += from.bursts(b, to, one, n)
			tookAll += from.bursts(b, to, all, n)
		}
		b.StopTimer()
		b.ReportMetric(float64(rounds*n*burstSize)/tookAll.Seconds(), "rdma/qps10k_msgs_per_s")
		b.ReportMetric(float64(tookOne)/float64(tookAll), "rdma/qps10k_over_one")
	}, func(_ int, c *config.Config) { c.Functions[0].VFs[0].Limits.QP = qps + 16 })
}

// crowd is a client with many QPs.
type crowd struct {
	*endpoint
	qps  []*guestlib.QP
	next int
}

func newCrowd(b *testing.B, w *world, i int) *crowd {
	b.Helper()
	return &crowd{endpoint: newEndpoint(b, w.openWith(i, "pf0.vf1", guestlib.Options{Memory: 256 << 20}))}
}

// join connects n more QPs to as many of the other crowd's.
func (c *crowd) join(b *testing.B, to *crowd, n, entries int) {
	b.Helper()
	ctx := testContext(b)
	service := uint64(100 + n)
	l, err := to.dev.Listen(ctx, service)
	if err != nil {
		b.Fatal(err)
	}
	cfg := guestlib.QPConfig{SendEntries: entries, RecvEntries: 1, Access: allAccess}
	for range n {
		for _, x := range []*crowd{c, to} {
			cfg.SendCQ = x.cq
			qp, err := x.pd.CreateQP(ctx, cfg)
			if err != nil {
				b.Fatal(err)
			}
			x.qps = append(x.qps, qp)
		}
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Accept(ctx, to.qps[len(to.qps)-1], nil)
			}
			accepted <- err
		}()
		if _, err := c.dev.Connect(ctx, c.qps[len(c.qps)-1], to.dev.GID(), service, nil); err != nil {
			b.Fatal(err)
		}
		if err := <-accepted; err != nil {
			b.Fatal(err)
		}
	}
}

// bursts sends n bursts over the QPs in turn and returns the time they took.
func (c *crowd) bursts(b *testing.B, to *crowd, qps []*guestlib.QP, n int) time.Duration {
	b.Helper()
	ctx := testContext(b)
	burst := make([]guestlib.SendWR, burstSize)
	for i := range burst {
		burst[i] = guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{c.mr.SGE(0, 64)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
	}
	burst[burstSize-1].Flags = guestlib.Signaled
	var wc [64]guestlib.WC
	start := time.Now()
	for posted, done := 0, 0; done < n; {
		for ; posted < n && (posted-done)*burstSize < maxInFlight; posted++ {
			c.next = (c.next + 7919) % len(qps) // not the order in which memory was allocated
			if _, err := qps[c.next].PostSends(burst); err != nil {
				b.Fatal(err)
			}
		}
		k, err := c.cq.Poll(wc[:])
		if err != nil {
			b.Fatal(err)
		}
		for i := range wc[:k] {
			if err := wc[i].Err(); err != nil {
				b.Fatal(err)
			}
		}
		if done += k; k == 0 {
			if err := c.cq.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	return time.Since(start)
}
