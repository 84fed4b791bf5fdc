package shard

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// busy is a virtual pair of NICs whose shards need time: each is a processor that runs one Step at
// a time, and what a Step outputs is sent at its end. So queues build up as in reality, and the
// time that a request waits behind others' can be measured without a machine that is shared with
// others.
type busy struct {
	*virtual
	shards [2][]busyShard
	seen   falcon.Time // when the effects of the Step's input are visible
	wire   falcon.Time // delay of a frame

	fed  func(nic int, s *Shard) bool        // gives a shard input of its guests before a Step and reports whether there was any; nil: there is none
	work func(nic int, s *Shard) falcon.Time // duration of a Step beside packets of the uplink; nil: none
}

// busyShard is a shard with its processor. The kernel gives it its frames.
type busyShard struct {
	*Shard
	freeAt  falcon.Time
	waiting []busyFrame // on the wire
	input   thread.Input
	more    bool
}

type busyFrame struct {
	at   falcon.Time
	data []byte
}

// Durations in ns: about those on a processor of 2023.
const (
	busyStep   = 500
	busyPacket = 400
	busyKiB    = 450 // gather or scatter, and AES-GCM
	busyWire   = 8000
	busyWake   = 4000 // from input to the first Step of a sleeping shard
)

func busyCost(n int) falcon.Time { return busyPacket + falcon.Time(n)*busyKiB/1024 }

// run runs until end; each is called after every Step of a NIC, with the time at which the Step's
// effects are visible.
func (b *busy) run(end falcon.Time, each func(nic int, at falcon.Time)) {
	for b.now < end {
		next := end
		for i := range b.shards {
			for k := range b.shards[i] {
				next = min(next, max(b.due(i, &b.shards[i][k]), b.shards[i][k].freeAt))
			}
		}
		b.now = max(b.now, next)
		for i := range b.shards {
			for k := range b.shards[i] {
				if s := &b.shards[i][k]; s.freeAt <= b.now {
					b.turn(i, s, each)
				}
			}
		}
	}
}

// due returns when a shard has something to do.
func (b *busy) due(i int, s *busyShard) falcon.Time {
	if s.more || !s.inbox.Empty() || s.others.waiting() || s.funcs.host.Called() {
		return b.now
	}
	at := min(b.outs[i][s.index].Deadline, b.decided[i].Deadline)
	if len(s.waiting) > 0 {
		at = min(at, s.waiting[0].at)
	}
	if len(b.mail[i]) > 0 {
		at = min(at, b.mail[i][0].at)
	}
	return at
}

func (b *busy) turn(i int, s *busyShard, each func(nic int, at falcon.Time)) {
	in, out := &s.input, &b.outs[i][s.index]
	in.Frames = in.Frames[:0]
	cost := falcon.Time(busyStep)
	if b.now > s.freeAt {
		cost += busyWake
	}
	for len(s.waiting) > 0 && s.waiting[0].at <= b.now && len(in.Frames) < thread.Batch {
		f := s.waiting[0]
		s.waiting = s.waiting[1:]
		in.Frames = append(in.Frames, f.data)
		cost += busyCost(len(f.data))
	}
	b.hear(i)
	b.decide(i)
	fed := b.fed != nil && b.fed(i, s.Shard)
	if len(in.Frames) == 0 && !fed && b.due(i, s) > b.now {
		return
	}
	s.Step(b.now, in, out)
	out.Do()
	if !out.More && s.inbox.Empty() && (len(s.waiting) == 0 || s.waiting[0].at > b.now) {
		s.Flush(b.now, out)
		out.Do()
	}
	s.more = out.More || fed
	if b.work != nil {
		cost += b.work(i, s.Shard)
	}
	b.decide(i)
	pending, received := s.uplink.tx.Pending(), cost
	for _, f := range pending {
		cost += busyCost(len(f))
	}
	s.freeAt = b.now + cost
	b.seen = b.now + received
	for _, f := range pending {
		to := b.receiver(1-i, f)
		to.waiting = append(to.waiting, busyFrame{s.freeAt + b.wire, slices.Clone(f)})
		slices.SortStableFunc(to.waiting, func(x, y busyFrame) int { return int(x.at - y.at) })
	}
	s.uplink.tx.Taken(len(pending))
	each(i, b.seen)
}

// receiver returns the shard of a NIC that a frame is for.
func (b *busy) receiver(i int, frame []byte) *busyShard {
	to := 0
	if sealed, ok := b.shards[i][0].uplink.underlay.Peek(frame); ok && len(b.shards[i]) > 1 {
		to = b.shards[i][0].others.shardOf(sealed)
	}
	return &b.shards[i][to]
}

// busyFlood measures a VF that writes 4 KiB at even intervals, alone or beside 64 that flood.
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
			f.Address, f.MAC = netip.AddrFrom4([4]byte{192, 168, byte(101 + i), byte(10 + n)}), config.FunctionMAC(c.CM.Name, 0, uint16(10+n))
			pf.VFs = append(pf.VFs, config.VF{VF: uint16(10 + n), Function: f})
		}
		change(c)
	})
	v.tell = false
	f := &busyFlood{busy: &busy{virtual: v, wire: busyWire}}
	for i := range v.nics {
		for _, s := range v.nics[i] {
			f.shards[i] = append(f.shards[i], busyShard{Shard: s})
		}
	}
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
	for i := range f.shards {
		for k := range f.shards[i] {
			f.shards[i][k].freeAt = v.now
		}
	}
	return f
}

// measure runs the quiet VF for a while and returns its latencies, and the bytes that the flood
// transferred.
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
	step := func(nic int, at falcon.Time) {
		if nic != 0 {
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

// TestAQuietVFKeepsItsShareUnderAFlood checks that a VF with a guarantee gets 95 % of its share, with at most three times
// its latency, while 64 others flood, also when only the shards' speed limits them (a VF without a
// guarantee waits longer).
func TestAQuietVFKeepsItsShareUnderAFlood(t *testing.T) { quietVF(t, nil) }

// TestQuietVFOfAnotherShard checks the same with the flood on another shard of the NIC, and with it
// on both.
func TestQuietVFOfAnotherShard(t *testing.T) {
	defer func(before int) { perNIC = before }(perNIC)
	perNIC = 2
	one, other := 0, 1
	t.Run("apart", func(t *testing.T) {
		quietVF(t, func(vf int) *int {
			if vf == 1 {
				return &one
			}
			return &other
		})
	})
	t.Run("both", func(t *testing.T) { quietVF(t, func(int) *int { return nil }) })
}

// quietVF runs the test. pin assigns VFs to shards.
func quietVF(t *testing.T, pin func(vf int) *int) {
	for _, c := range []struct {
		name  string
		limit uint32 // limit on packets in flight of the whole NIC
	}{{"unlimited", 65536}, {"limited", 48}} {
		t.Run(c.name, func(t *testing.T) {
			f := newBusyFlood(t, 64, func(cfg *config.Config) {
				cfg.Credits.NIC.RequestPacketTx, cfg.Credits.Host.RequestPacketTx = c.limit, c.limit
				vfs := cfg.Functions[0].VFs
				vfs[0].Guarantee = config.Credits{RequestPacketTx: 8}
				for i := range vfs {
					if pin != nil {
						vfs[i].Shard = pin(int(vfs[i].VF))
					}
				}
			})
			const d = 30e6
			every := falcon.Time(199e3) // more often than a 65th of the flood's rate
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
			f.checkCredits(t, c.limit)
		})
	}
}

// checkCredits checks that all of the NIC's packet credits are back at rest.
func (f *busyFlood) checkCredits(t *testing.T, limit uint32) {
	for i := range f.nics {
		charged := uint32(0)
		for _, s := range f.nics[i] {
			if n := s.funcs.host.InUse()[credit.ReqPktTx]; n != 0 {
				t.Errorf("NIC %d, shard %d: %d packets are under way", i, s.index, n)
			}
			charged += s.funcs.host.Parent().Charged()[credit.ReqPktTx]
		}
		if charged != 8 || f.nics[i][0].funcs.host.Limit()[credit.ReqPktTx] != limit {
			t.Errorf("NIC %d: %d packets set aside of %d, want 8 of %d", i, charged, f.nics[i][0].funcs.host.Limit()[credit.ReqPktTx], limit)
		}
	}
}
