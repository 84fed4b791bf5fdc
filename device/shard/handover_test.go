package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// TestFloodFromAnotherShardTakesHalfTheTime checks that a flood of handed-over frames takes no more
// of another shard's Step than its own uplink does, delays no third shard, and is processed
// completely.
func TestFloodFromAnotherShardTakesHalfTheTime(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	cfg.NIC.Shards = 3
	_, shards := newNIC(t, cfg, 1)
	to, frame := shards[0], make([]byte, 64) // for no host: counted and dropped
	give := func(from, n int, kind handover.Kind) {
		for range n {
			b := shards[from].others.rings.Put(0, &handover.Header{Kind: kind}, len(frame))
			if b == nil {
				t.Fatal("not taken")
			}
			copy(b, frame)
			shards[from].others.rings.Commit()
		}
	}
	seen := func() (n uint64) {
		for _, v := range to.uplink.underlay.Stats() {
			n += v
		}
		return n
	}
	const flood, few, own = handover.FlowFrames, 10, 5
	give(1, flood, handover.Uplink)
	give(2, few, handover.Plain) // for no port
	var out thread.Output
	in := thread.Input{Frames: [][]byte{frame, frame, frame, frame, frame}}
	now, steps := int64(1e9), 0
	for out.More = true; out.More; steps++ {
		now++
		before := seen()
		to.Step(now, &in, &out)
		out.Do()
		if n := seen() - before; n < own || n > own+handedQuantum {
			t.Fatalf("%d frames in a Step, %d of its own uplink", n, own)
		}
		if n := to.plain.gw.Stats().Reasons[gateway.DropNoPort]; steps == 1 && n != few {
			t.Errorf("%d frames of the third shard are taken beside the flood, want %d", n, few)
		}
		if to.others.waiting() && !out.More {
			t.Fatal("frames are left lying")
		}
	}
	if want := (flood + few + handedQuantum - 1) / handedQuantum; steps != want {
		t.Errorf("%d Steps, want %d", steps, want)
	}
}

// TestFramesReachPortsOfAnotherShardUnchanged checks that frames for ports of another shard reach them unchanged, with their
// offloads, stay intact until the ports have got them, and are refused if there are too many.
func TestFramesReachPortsOfAnotherShardUnchanged(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	devicetest.AddPort(cfg, 0, &config.Port{Name: "vp1"})
	cfg.NIC.Shards = 2
	one := 1
	for i := range cfg.Functions[0].VFs {
		cfg.Functions[0].VFs[i].Shard = &one
	}
	shards := make([]*Shard, 2)
	core, err := controller.NewCore(controller.CoreConfig{NIC: cfg, Shards: 2, ShardOf: func(uint32) int { return 1 }, Rand: devicetest.Seeded(1)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range shards {
		if shards[i], err = New(i, cfg, core.ShardLink(i), nil, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	Join(shards)
	from, to := shards[0].plain.gw.Handover, shards[1]
	port := onlyPort(to)
	packet := append([]byte{0x45, 0, 0, 200, 0, 0, 0x40, 0, 64, 99, 0, 0, 192, 168, 100, 99}, port.Addresses[0].AsSlice()...)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	frame := append(make([]byte, 14), append(packet, bytes.Repeat([]byte{7}, 180)...)...)
	frame[12] = 8 // IPv4
	off := gateway.Offload{GSO: gateway.GSOUDP, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 6}
	var out thread.Output
	now := int64(1e9)
	for round := range 2000 {
		if !from.ToPort(1, 1, port.Function, frame, off) || !from.ToPort(1, 1, port.Function, frame, gateway.Offload{}) {
			t.Fatalf("round %d: not taken", round)
		}
		if given := shards[0].others.rings.Given(); given != 1<<1 {
			t.Fatalf("woken: %b", given)
		}
		now++
		to.Step(now, &thread.Input{}, &out)
		got := to.plain.gw.Output()
		if len(got) != 2 || got[0].Offload != off || got[1].Offload != (gateway.Offload{}) {
			t.Fatalf("round %d: %+v, %v", round, got, to.plain.gw.Stats().Reasons)
		}
		// New frames do not overwrite these.
		from.ToPort(1, 1, port.Function, bytes.Repeat([]byte{0xff}, 60<<10), gateway.Offload{})
		for i := range got {
			if b := bytes.Join(got[i].Parts, nil); got[i].To != port.Endpoint || !bytes.Equal(b[12:], frame[12:]) {
				t.Fatalf("round %d: frame %d is %x", round, i, b)
			}
		}
		to.plain.gw.Done()
		to.Step(now, &thread.Input{}, &out)
		to.plain.gw.Done()
	}
	n := 0
	for from.ToPort(1, 1, port.Function, frame, off) {
		n++
	}
	if n < 100 || n > handover.FlowFrames {
		t.Errorf("%d frames wait at once", n)
	}
	if !from.ToPort(1, 2, port.Function, frame, off) {
		t.Error("no room for what another function sends")
	}
}

// TestPortsOfAllShardsReachEachOther checks with ports on one, two and three shards of a NIC that each reaches every
// other one, of its own NIC and of the peer, while both rotate their keys; each shard seals with
// keys of its own.
func TestPortsOfAllShardsReachEachOther(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newPortWorldWith(t, 5, func(i int, c *config.Config) {
			for vf := 1; vf < 3; vf++ {
				devicetest.AddPort(c, vf, &config.Port{Name: fmt.Sprint("vp", vf+1)})
			}
		})
		const ports = 3
		for round := range 3 {
			for nic := range 2 {
				if round > 0 {
					if err := v.cores[nic].Keys.Rotate(v.now); err != nil {
						t.Fatal(err)
					}
				}
				for from := range ports {
					for to := range 2 * ports {
						other := to / ports
						if to%ports == from && other == nic {
							continue
						}
						v.say(nic, from, v.addrOf(nic, from), v.addrOf(other, to%ports), 100+to)
						want := bytes.Clone(v.ports[nic][0].Frame[14:])
						got := v.received(other)
						if len(got) != 1 || !bytes.Equal(got[0][14:], want) || [6]byte(got[0][:6]) != v.portAt(other, to%ports).MAC {
							t.Fatalf("round %d, host %d port %d to host %d port %d: %d frames", round, nic+1, from, other+1, to%ports, len(got))
						}
					}
				}
			}
			v.idle(2e9) // the old keys have ended
		}
		noKeyDrops(t, v)
		handed := uint64(0)
		for i := range v.nics {
			spis := map[uint32]int{}
			for _, s := range v.nics[i] {
				handed += s.plain.gw.Stats().HandedOver
				for _, k := range s.txSAs.List() {
					if spis[k.SPI]++; spis[k.SPI] > 1 || int(k.Use.Shard) != s.index {
						t.Errorf("shard %d seals with SPI %#x, %v", s.index, k.SPI, k.Use)
					}
				}
			}
		}
		if (handed > 0) != (perNIC > 1) {
			t.Errorf("%d frames were handed over", handed)
		}
	})
}

func (v *virtual) addrOf(nic, n int) [4]byte { return v.portAt(nic, n).Addresses[0].As4() }

// TestAnOffloadIsTheSameOnAnotherShard checks that a frame's offload is the same on another shard.
func TestAnOffloadIsTheSameOnAnotherShard(t *testing.T) {
	for _, off := range []gateway.Offload{
		{},
		{NeedsCsum: true, CsumStart: 34, CsumOffset: 6},
		{GSO: gateway.GSOTCP6, NeedsCsum: true, Size: 1400, CsumStart: 54, CsumOffset: 16},
		{GSO: 0xff, NeedsCsum: true, Size: 0xfffe, CsumStart: 0xfdfc, CsumOffset: 0xfbfa},
	} {
		var h handover.Header
		if putOffload(h.Aux[:], off); offloadOf(h.Aux[:]) != off {
			t.Errorf("%+v became %+v", off, offloadOf(h.Aux[:]))
		}
	}
}

// TestClockInsideTheNICHasTheUnitsOfASealedOne checks that the clock of a packet inside the NIC has
// the units of a sealed one, 2¹⁷ ps.
func TestClockInsideTheNICHasTheUnitsOfASealedOne(t *testing.T) {
	for now, want := range map[falcon.Time]uint32{0: 0, 131: 0, 132: 1, 131_072: 1000, 131_072_000_000: 1_000_000_000} {
		if got := sentAt(now); got != want {
			t.Errorf("%d ns: %d, want %d", now, got, want)
		}
	}
}

// sealedFor returns a sealed packet of n bytes for a connection of a shard, as far as it is in
// clear text.
func sealedFor(shard, n int) []byte {
	b := make([]byte, n)
	b[0] = psp.NextHeaderIPv4
	binary.BigEndian.PutUint32(b[psp.BaseLen+psp.VCLen+underlay.InnerLen:], 1<<28|uint32(shard)<<20|7)
	return b
}

// TestFrameGoesToTheShardOfItsConnection checks that a frame of the uplink goes to the shard of its
// connection, and a superframe to the shard of all its packets, if they have the same. Frames for
// no existing shard stay.
func TestFrameGoesToTheShardOfItsConnection(t *testing.T) {
	keys, err := security.NewKeys(security.Config{Shards: 3, Rand: devicetest.Seeded(1)})
	if err != nil {
		t.Fatal(err)
	}
	const own, n = 1, 100
	o := &others{rings: handover.New(3)[own], index: own, underlay: new(underlay.Stack), opener: keys.Opener(own), encap: security.Tunnel{}}
	o.cut = make([]byte, 2000)
	frame := func(sealed ...[]byte) []byte {
		f := make([]byte, underlay.Headroom, 2000)
		f[12], f[14], f[23] = 8, 0x45, 17
		f[36], f[37] = underlay.SealedPort>>8, underlay.SealedPort&0xff
		f = append(f, bytes.Join(sealed, nil)...)
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
		binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
		return f
	}
	other := frame(sealedFor(2, n))
	other[23] = 6
	for name, tc := range map[string]struct {
		frame   []byte
		segment int
		want    int // -1: for more than one
	}{
		"our own":                   {frame(sealedFor(own, n)), 0, own},
		"shard 0's":                 {frame(sealedFor(0, n)), 0, 0},
		"the last shard's":          {frame(sealedFor(2, n)), 0, 2},
		"of a shard that is not":    {frame(sealedFor(3, n)), 0, own},
		"of another that is not":    {frame(sealedFor(conn.MaxShards-1, n)), 0, own},
		"of nothing":                {frame(nil), 0, own},
		"cut within its connection": {frame(sealedFor(2, n)[:psp.BaseLen+psp.VCLen+underlay.InnerLen+3]), 0, own},
		"cut behind it":             {frame(sealedFor(2, n)[:psp.BaseLen+psp.VCLen+underlay.InnerLen+4]), 0, 2},
		"not sealed":                {other, 0, own},
		"a superframe":              {frame(sealedFor(2, n), sealedFor(2, n), sealedFor(2, n)), n, 2},
		"with a shorter end":        {frame(sealedFor(2, n), sealedFor(2, n), sealedFor(2, n-30)), n, 2},
		"for two":                   {frame(sealedFor(2, n), sealedFor(2, n), sealedFor(0, n)), n, -1},
		"for two, one of us":        {frame(sealedFor(own, n), sealedFor(2, n)), n, -1},
		"the last packet is cut":    {frame(sealedFor(2, n), sealedFor(2, n)[:20]), n, -1},
		"one packet":                {frame(sealedFor(2, n)), n, 2},
	} {
		if got, one := o.shardFor(tc.frame, tc.segment); one != (tc.want >= 0) || one && got != tc.want {
			t.Errorf("%s: for one %t, for %d, want %d", name, one, got, tc.want)
		}
	}
	f := frame(sealedFor(2, n), sealedFor(0, n), sealedFor(2, n-30))
	for i, want := range []int{underlay.Headroom + n, underlay.Headroom + n, underlay.Headroom + n - 30, 0} {
		if got := o.part(f, n, i); len(got) != want {
			t.Errorf("part %d has %d bytes, want %d", i, len(got), want)
		}
	}
}
