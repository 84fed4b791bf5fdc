package falcon_test

import (
	"runtime"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// plainULP is an upper layer that does only what is necessary.
type plainULP struct {
	payload   []byte
	done      int
	responses int
}

func (u *plainULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	return copy(dst, u.payload[:len(dst)]), nil
}

func (u *plainULP) handle(now falcon.Time, ev *falcon.Event) {
	switch ev.Kind {
	case falcon.EvPush:
		ev.Conn.AckPush(now, ev.RSN)
	case falcon.EvPull:
		_ = ev.Conn.RespondPull(now, ev.RSN, ev.Tag, ev.Length)
	case falcon.EvPushDone, falcon.EvPullDone:
		u.done++
	case falcon.EvResponseDone:
		u.responses++
	}
}

// batch is the number of packets in flight at once.
const batch = 32

// backToBack is two engines with nothing in between.
type backToBack struct {
	now  falcon.Time
	e    [2]*falcon.Engine
	ulp  [2]*plainULP
	conn *falcon.Conn
	buf  [batch][8192]byte
	len  [batch]int
	sent int
	// loss drops every n-th packet, 0 = none.
	loss int
	// through transforms each packet on its way to a node; nil: it is unchanged.
	through func(to int, packet []byte) falcon.Packet
}

func newBackToBack(tb testing.TB) *backToBack {
	tb.Helper()
	return newBackToBackWith(tb, falcon.Software())
}

func newBackToBackWith(tb testing.TB, p falcon.Profile) *backToBack {
	tb.Helper()
	b := &backToBack{now: ms}
	for i := range b.e {
		b.ulp[i] = &plainULP{payload: make([]byte, 8192)}
		b.e[i] = falcon.NewEngine(falcon.Config{Profile: p, Credits: credit.New(nil, credit.NoLimit())}, b.ulp[i])
	}
	cfg := connConfig(true)
	var err error
	if b.conn, err = b.e[0].Open(b.now, cfg); err != nil {
		tb.Fatal(err)
	}
	if _, err = b.e[1].Open(b.now, sim.Mirror(cfg)); err != nil {
		tb.Fatal(err)
	}
	return b
}

// exchange moves packets until there is nothing left to move.
func (b *backToBack) exchange() {
	var ev falcon.Event
	for busy := true; busy; {
		busy = false
		for i, e := range b.e {
			peer := b.e[1-i]
			e.Advance(b.now)
			for n := b.transmit(e); n > 0; n = b.transmit(e) {
				busy = true
				for k := range n {
					cid, _ := wire.PeekCID(b.buf[k][:])
					peer.Prefetch(cid)
				}
				for k := range n {
					data := b.buf[k][:b.len[k]]
					if b.sent++; b.loss > 0 && b.sent%b.loss == 0 {
						continue
					}
					packet := falcon.Packet{T1: falcon.FalconTime(b.now - 20*us), Data: data}
					if b.through != nil {
						packet = b.through(1-i, data)
					}
					peer.Receive(b.now, packet)
					for peer.Next(&ev) {
						b.ulp[1-i].handle(b.now, &ev)
					}
				}
			}
			for e.Next(&ev) {
				b.ulp[i].handle(b.now, &ev)
			}
		}
		b.now += us
	}
	for _, e := range b.e {
		e.FlushAcks(b.now)
	}
}

// transmit fills a batch of buffers, as a NIC does before it writes them to the network.
func (b *backToBack) transmit(e *falcon.Engine) (n int) {
	for n < batch {
		if b.len[n], _ = e.Transmit(b.now, b.buf[n][:]); b.len[n] == 0 {
			break
		}
		n++
	}
	return n
}

func (b *backToBack) pushes(tb testing.TB, n, length int) {
	for range n {
		if err := b.conn.Push(b.now, 1, length); err != nil {
			tb.Fatal(err)
		}
	}
	for want := b.ulp[0].done + n; b.ulp[0].done < want; {
		b.exchange()
		b.now += 100 * us
	}
}

func (b *backToBack) pulls(tb testing.TB, n, length int) {
	for range n {
		if err := b.conn.Pull(b.now, 1, 44, length); err != nil {
			tb.Fatal(err)
		}
	}
	for want := b.ulp[0].done + n; b.ulp[0].done < want; {
		b.exchange()
		b.now += 100 * us
	}
}

// TestNoAllocations holds the engine to zero allocations per packet, also while it recovers losses.
func TestNoAllocations(t *testing.T) {
	for _, loss := range []int{0, 13} {
		b := newBackToBack(t)
		b.loss = loss
		round := func() {
			b.pushes(t, 50, 4096)
			b.pulls(t, 50, 4096)
		}
		for range 50 {
			round()
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("one packet in %d lost: %v allocations in 100 transactions, want 0", loss, n)
		}
	}
}

func benchmarkPush(b *testing.B, length int, metric string) {
	w := newBackToBack(b)
	w.pushes(b, 256, length)
	b.ReportAllocs()
	b.SetBytes(int64(length))
	b.ResetTimer()
	for n := 0; n < b.N; n += 64 {
		w.pushes(b, min(64, b.N-n), length)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), metric)
}

func BenchmarkPush64(b *testing.B) { benchmarkPush(b, 64, "falcon/push64_per_s") }

func BenchmarkPush4k(b *testing.B) { benchmarkPush(b, 4096, "falcon/push4k_per_s") }

func BenchmarkPull4k(b *testing.B) {
	w := newBackToBack(b)
	w.pulls(b, 256, 4096)
	b.ReportAllocs()
	b.SetBytes(4096)
	b.ResetTimer()
	for n := 0; n < b.N; n += 64 {
		w.pulls(b, min(64, b.N-n), 4096)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "falcon/pull4k_per_s")
}

// benchmarkManyConns pushes over 10 000 connections in turn, 64 transactions at a time as
// benchmarkPush does. So the difference to benchmarkPush is only the cost of other connections:
// memory that is not in the cache, and shorter bursts.
func benchmarkManyConns(b *testing.B, burst int, metric string) {
	const conns, batch = 10000, 64
	w := newBackToBack(b)
	all := []*falcon.Conn{w.conn}
	for i := uint32(1); i < conns; i++ {
		cfg := connConfig(true)
		cfg.LocalCID += i
		cfg.RemoteCID += i
		c, err := w.e[0].Open(w.now, cfg)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.e[1].Open(w.now, sim.Mirror(cfg)); err != nil {
			b.Fatal(err)
		}
		all = append(all, c)
	}
	next := 0
	run := func(n int) {
		for ; n > 0; n -= batch {
			for i := range batch / burst {
				all[(next+7919*(i+1))%conns].Prefetch()
			}
			for i := range batch {
				if i%burst == 0 {
					next = (next + 7919) % conns // no order that memory was allocated in
				}
				if err := all[next].Push(w.now, 1, 64); err != nil {
					b.Fatal(err)
				}
			}
			for want := w.ulp[0].done + batch; w.ulp[0].done < want; {
				w.exchange()
				w.now += 100 * us
			}
		}
	}
	run(conns * 32) // windows grow to their size
	b.ReportAllocs()
	b.ResetTimer()
	run(b.N)
	b.ReportMetric(float64((b.N+batch-1)/batch*batch)/b.Elapsed().Seconds(), metric)
}

func BenchmarkPush64ManyConns(b *testing.B) {
	benchmarkManyConns(b, 16, "falcon/push64_10k_conns_per_s")
}

func BenchmarkPush64ManyConnsBurst1(b *testing.B) {
	benchmarkManyConns(b, 1, "falcon/push64_10k_conns_burst1_per_s")
}

// BenchmarkIdleConn measures the memory of a connection that was opened and not used.
func BenchmarkIdleConn(b *testing.B) {
	const n = 10000
	var bytes float64
	for range b.N {
		e := falcon.NewEngine(falcon.Config{Profile: falcon.Software()}, &plainULP{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range uint32(n) {
			cfg := connConfig(true)
			cfg.LocalCID = i
			if _, err := e.Open(0, cfg); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		bytes = float64(after.HeapAlloc-before.HeapAlloc) / n
		if at := e.Deadline(); at < 1<<62 {
			b.Fatalf("idle connections have a timer at %d", at)
		}
		runtime.KeepAlive(e)
	}
	b.ReportMetric(bytes, "falcon/idle_conn_bytes")
}
