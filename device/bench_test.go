package device

import (
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// BenchmarkBareGuests measures what bare clients see over an in-memory fabric: the guest's side,
// rings, Falcon and the seal, without a kernel in between. Both NICs and both clients share this
// process.
//
// The NICs start within each part: the testing package sets GOMAXPROCS when a part starts, which
// takes back the processor of Go's scheduler that each shard's thread has reserved.
func BenchmarkBareGuests(b *testing.B) {
	pair := func(b *testing.B) (x, y *endpoint) {
		w := newWorld(b)
		x, y = newEndpoint(b, w.open(0, "pf0.vf1")), newEndpoint(b, w.open(1, "pf0.vf1"))
		connect(b, x, y, 1)
		return x, y
	}
	b.Run("write64", func(b *testing.B) {
		x, y := pair(b)
		b.ReportMetric(percentile(x.latencies(b, y, 64), 50), "guest/bare_write64_lat_us")
	})
	b.Run("write64k", func(b *testing.B) {
		x, y := pair(b)
		took := x.stream(b, y, guestlib.Write, 64<<10, 16)
		b.ReportMetric(float64(b.N)*(64<<10)/1e6/took.Seconds(), "guest/bare_write64k_mbs")
	})
}

// stream runs b.N operations towards y with inFlight of them in flight. If there are many, one in
// eight is signaled.
func (e *endpoint) stream(b *testing.B, y *endpoint, op guestlib.Opcode, size, inFlight int) time.Duration {
	b.Helper()
	batch := max(1, inFlight/8)
	wr := guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{e.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
	receives := guestlib.RecvWR{SGL: []guestlib.SGE{y.mr.SGE(0, size)}}
	receive := func() {
		if err := y.qp.PostRecv(&receives); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{})
	if op == guestlib.Send {
		for range min(b.N, 2*inFlight) {
			receive()
		}
		go func() {
			defer close(done)
			for i := range b.N {
				if wc := y.next(b); wc.Err() != nil {
					b.Error(wc.Err())
					return
				}
				if i+2*inFlight < b.N {
					receive()
				}
			}
		}()
	} else {
		close(done)
	}
	b.ResetTimer()
	start := time.Now()
	waiting := 0
	reap := func() {
		if wc := e.next(b); wc.Err() != nil {
			b.Fatal(wc.Err())
		}
		waiting--
	}
	for i := range b.N {
		wr.Flags = 0
		if i%batch == batch-1 || i == b.N-1 {
			wr.Flags = guestlib.Signaled
			waiting++
		}
		if err := e.qp.PostSend(&wr); err != nil {
			b.Fatal(err)
		}
		if waiting*batch >= inFlight {
			reap()
		}
	}
	for waiting > 0 {
		reap()
	}
	<-done
	b.StopTimer()
	return time.Since(start)
}

// latencies measures b.N WRITEs one after the other, from post to completion.
func (e *endpoint) latencies(b *testing.B, y *endpoint, size int) []time.Duration {
	b.Helper()
	wr := guestlib.SendWR{Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{e.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
	times := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		if err := e.qp.PostSend(&wr); err != nil {
			b.Fatal(err)
		}
		wc := e.next(b)
		times = append(times, time.Since(start))
		if err := wc.Err(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	return times
}

// percentile returns a percentile in microseconds.
func percentile(times []time.Duration, p int) float64 {
	slices.Sort(times)
	return float64(times[(len(times)-1)*p/100].Nanoseconds()) / 1000
}

// BenchmarkDoorbell measures how long a posted 64-byte WRITE waits until the
// device reads it, and until it is complete, for a client that polls: with the
// producer index as doorbell, and with a record on the control stream for every
// post. Reported are medians.
func BenchmarkDoorbell(b *testing.B) {
	for _, how := range []struct {
		name   string
		always bool
	}{{"shadow", false}, {"record", true}} {
		b.Run(how.name, func(b *testing.B) {
			w := newWorld(b)
			x := newEndpoint(b, w.openWith(0, "pf0.vf1", guestlib.Options{Memory: 16 << 20, RingAlways: how.always}))
			y := newEndpoint(b, w.open(1, "pf0.vf1"))
			connect(b, x, y, 1)
			wr := guestlib.SendWR{Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{x.mr.SGE(0, 64)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
			taken, done := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for i := range b.N {
				start := time.Now()
				if err := x.qp.PostSend(&wr); err != nil {
					b.Fatal(err)
				}
				for looks := 0; ; looks++ {
					n, err := x.qp.SendsTaken()
					if err != nil {
						b.Fatal(err)
					}
					if n == uint32(i+1) {
						break
					}
					pause(looks)
				}
				taken = append(taken, time.Since(start))
				x.spin(b, "WRITE")
				done = append(done, time.Since(start))
			}
			b.ReportMetric(percentile(taken, 50), "guest/bare_doorbell_"+how.name+"_us")
			b.ReportMetric(percentile(done, 50), "guest/bare_write64_"+how.name+"_us")
		})
	}
}
