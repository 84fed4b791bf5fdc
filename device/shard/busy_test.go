package shard

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// busy is a virtual pair of NICs whose shards take time: each is a processor that does one Step at
// a time and is away until that is done. What a Step makes leaves at its end. Queues then build up
// where they do in truth, and how long a request waits behind those of others can be measured
// without a machine that is shared with others.
type busy struct {
	*virtual
	freeAt  [2]falcon.Time
	waiting [2][]busyFrame // on the wire, by receiver
	input   [2]thread.Input
	more    [2]bool
	seen    falcon.Time // when the effects of the Step's input are seen
}

type busyFrame struct {
	at   falcon.Time
	data []byte
}

// What things take, in ns: about what they do on a processor of 2023.
const (
	busyStep   = 500
	busyPacket = 400
	busyKiB    = 450 // gather or scatter, and AES-GCM
	busyWire   = 8000
	busyWake   = 4000 // from input to the first Step of a shard that sleeps
)

func busyCost(n int) falcon.Time { return busyPacket + falcon.Time(n)*busyKiB/1024 }

// run goes on until end; each is called after every Step of a side, with the time at which its
// effects are seen.
func (b *busy) run(end falcon.Time, each func(side int, at falcon.Time)) {
	for b.now < end {
		next := end
		for i, s := range b.shards {
			at := min(b.outs[i][0].Deadline, b.decided[i].Deadline)
			if len(b.waiting[i]) > 0 {
				at = min(at, b.waiting[i][0].at)
			}
			if b.more[i] || !s.inbox.Empty() {
				at = b.now
			}
			if len(b.mail[i]) > 0 {
				at = min(at, b.mail[i][0].at)
			}
			next = min(next, max(at, b.freeAt[i]))
		}
		b.now = max(b.now, next)
		for i := range b.shards {
			if b.freeAt[i] <= b.now {
				b.turn(i, each)
			}
		}
	}
}

func (b *busy) turn(i int, each func(side int, at falcon.Time)) {
	s := b.shards[i]
	in := &b.input[i]
	in.Frames = in.Frames[:0]
	cost := falcon.Time(busyStep)
	if b.now > b.freeAt[i] {
		cost += busyWake
	}
	for len(b.waiting[i]) > 0 && b.waiting[i][0].at <= b.now && len(in.Frames) < thread.Batch {
		f := b.waiting[i][0]
		b.waiting[i] = b.waiting[i][1:]
		in.Frames = append(in.Frames, f.data)
		cost += busyCost(len(f.data))
	}
	for len(b.mail[i]) > 0 && b.mail[i][0].at <= b.now {
		b.peers[i].Message(b.mail[i][0].msg)
		b.mail[i] = b.mail[i][1:]
	}
	b.decide(i)
	if len(in.Frames) == 0 && !b.more[i] && s.inbox.Empty() && b.outs[i][0].Deadline > b.now {
		return
	}
	s.Step(b.now, in, &b.outs[i][0])
	b.outs[i][0].Do()
	if !b.outs[i][0].More && s.inbox.Empty() && (len(b.waiting[i]) == 0 || b.waiting[i][0].at > b.now) {
		s.Flush(b.now, &b.outs[i][0])
		b.outs[i][0].Do()
	}
	b.more[i] = b.outs[i][0].More
	b.decide(i)
	pending, received := s.tx.Pending(), cost
	for _, f := range pending {
		cost += busyCost(len(f))
	}
	b.freeAt[i] = b.now + cost
	b.seen = b.now + received
	for _, f := range pending {
		b.waiting[1-i] = append(b.waiting[1-i], busyFrame{b.freeAt[i] + busyWire, slices.Clone(f)})
	}
	s.tx.Taken(len(pending))
	each(i, b.seen)
}

// busyFlood measures a VF that writes 4 KiB at even times, alone or beside 64 that flood.
type busyFlood struct {
	*busy
	quiet [2]*driver
	flood [][2]*driver
	bytes int
}

func newBusyFlood(t testing.TB, flooders int, change func(c *config.Config)) *busyFlood {
	t.Helper()
	v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) {
		pf := &c.Functions[0]
		pf.VFCount = 1000
		for n := range flooders {
			f := pf.VFs[1].Function
			f.Address, f.MAC = netip.AddrFrom4([4]byte{192, 168, byte(101 + i), byte(10 + n)}), config.FunctionMAC(c.NIC.Host, 0, uint16(10+n))
			pf.VFs = append(pf.VFs, config.VF{VF: uint16(10 + n), Function: f})
		}
		change(c)
	})
	v.tell = false
	f := &busyFlood{busy: &busy{virtual: v}}
	connect := func(vf int, service uint64) (p [2]*driver) {
		p[0], p[1] = newDriver(v, 0, vf), newDriver(v, 1, vf)
		p[0].setUp()
		p[1].setUp()
		p[0].connectTo(p[1], service)
		return p
	}
	f.quiet = connect(1, 1)
	for n := range flooders {
		f.flood = append(f.flood, connect(10+n, uint64(10+n)))
	}
	f.freeAt = [2]falcon.Time{v.now, v.now}
	return f
}

// measure runs the quiet VF for a while and returns its latencies, and how many bytes the flood got
// through.
func (f *busyFlood) measure(d, every falcon.Time, flood bool) (took []falcon.Time, bytes int) {
	const size, window = 64 << 10, 8
	end := f.now + d
	f.bytes = 0
	if flood {
		for _, p := range f.flood {
			for range window {
				p[0].send(abi.OpWrite, 0, size, p[1], 0)
			}
		}
	}
	next := f.now + every
	var posted []falcon.Time
	step := func(side int, at falcon.Time) {
		if side != 0 {
			return
		}
		for _, p := range f.flood {
			for {
				if _, ok := p[0].completion(); !ok {
					break
				}
				f.bytes += size
				if flood && at < end {
					p[0].send(abi.OpWrite, 0, size, p[1], 0)
				}
			}
		}
		for {
			if _, ok := f.quiet[0].completion(); !ok {
				break
			}
			took = append(took, at-posted[0])
			posted = posted[1:]
		}
	}
	for f.now < end {
		f.run(min(next, end), step)
		if f.now >= next && f.now < end {
			posted = append(posted, f.now)
			f.quiet[0].send(abi.OpWrite, 0, 4096, f.quiet[1], 0)
			next += every
		}
	}
	bytes = f.bytes
	flood = false
	f.run(f.now+500e6, step)
	slices.Sort(took)
	return took, bytes
}

// TestQuietVF holds a VF with a guarantee to 95 % of what it is due and to three times its latency
// while 64 others flood, also when nothing but the shards' speed bounds them (a VF without a
// guarantee waits longer).
func TestQuietVF(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit uint32 // packets under way of the whole NIC
	}{{"unlimited", 65536}, {"limited", 48}} {
		t.Run(c.name, func(t *testing.T) {
			f := newBusyFlood(t, 64, func(cfg *config.Config) {
				cfg.Credits.NIC.RequestPacketTx, cfg.Credits.Host.RequestPacketTx = c.limit, c.limit
				cfg.Functions[0].VFs[0].Guarantee = config.Credits{RequestPacketTx: 8}
			})
			const d = 30e6
			every := falcon.Time(199e3) // more often than a 65th of what the flood gets through
			idle, _ := f.measure(d, every, false)
			busy, bytes := f.measure(d, every, true)
			p99 := func(l []falcon.Time) falcon.Time { return l[len(l)*99/100] }
			ratio := float64(p99(busy)) / float64(p99(idle))
			share := float64(len(busy)) / float64(len(idle))
			t.Logf("idle p50 %d p99 %d ns; beside %.0f MB/s p50 %d p99 %d ns: %.2f times, share %.3f",
				idle[len(idle)/2], p99(idle), float64(bytes)/(d/1e9)/1e6, busy[len(busy)/2], p99(busy), ratio, share)
			if ratio > 3 || share < 0.95 || bytes < 20e6 {
				t.Errorf("p99 %.2f times that of idle, share %.3f, flood of %d bytes", ratio, share, bytes)
			}
		})
	}
}
