package shard

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// inject puts a frame on the wire towards a NIC.
func (v *virtual) inject(to int, frame []byte) {
	v.links[1-to].Send(v.now, frame)
	v.idle(wire100us.Delay + 1)
}

// forge returns a packet sealed as by shard 0, with changes by the caller.
func forge(v *virtual, a *driver, change func(c *conn.Slot, falcon []byte)) []byte {
	s := v.shards[0]
	c := *s.falcon.table.ByID(a.connID())
	b := make([]byte, txBufferSize(s.cfg))
	const n = 64
	packet := b[falconAt : falconAt+n]
	binary.BigEndian.PutUint32(packet, 1<<28|c.Conn.Config().RemoteCID)
	change(&c, packet)
	at, sealed, err := s.out.wrap(v.now, &c, b, n)
	if err != nil {
		v.t.Fatal(err)
	}
	b = b[at:]
	total, ok := s.uplink.underlay.Output(v.now, c.Underlay, srcPort(&c), underlay.ECT0, b, sealed)
	if !ok {
		v.t.Fatal("not resolved")
	}
	return b[:total]
}

// sealWith makes shard 0's connection seal with a key that is not its own.
func (v *virtual) sealWith(c *conn.Slot, u security.Use, sa cm.SA) {
	v.t.Helper()
	tx, err := security.NewTxSAs(security.Tunnel{}, v.cores[0].Manager.CM).Give(u, sa)
	if err != nil {
		v.t.Fatal(err)
	}
	r, _ := v.cores[0].Keys.Receive(sessionOf(c).Use(), 0)
	c.Keys = security.NewSession(r, tx, false)
}

func (d *driver) connID() uint32 {
	for _, id := range d.fn.conns.IDs() {
		return id
	}
	d.v.t.Fatal("no connection")
	return 0
}

// TestBadPacketsAreDroppedAndCounted injects packets that must not pass: each is dropped and counted, and the
// connection goes on.
func TestBadPacketsAreDroppedAndCounted(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 10_000)
	var good []byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && good == nil && len(f) > 1000 {
			good = append([]byte(nil), f...)
		}
		return f
	}
	exchange(t, a, b, 10_000)
	v.tap = nil
	flipped := func(at int) []byte {
		f := append([]byte(nil), good...)
		f[(at+len(f))%len(f)] ^= 1
		return f
	}
	v.idle(2e9)
	exchange(t, a, b, 10_000) // moves the remote time past the margin
	for _, tc := range []struct {
		name  string
		frame []byte
		want  dropReason
	}{
		{"replayed", good, dropReplay},
		{"bad ICV", flipped(-1), dropPSPAuth},
		{"changed data", flipped(200), dropPSPAuth},
		{"changed CID", flipped(falconAt + 3), dropPSPAuth},
		{"changed cookie", flipped(underlay.Headroom + psp.BaseLen + 3), dropPSPAuth},
		{"changed SPI", flipped(underlay.Headroom + 6), dropPSPSPI},
		{"changed version", flipped(underlay.Headroom + 3), dropPSPMalformed},
		{"unknown CID", forge(v, a, func(_ *conn.Slot, p []byte) { binary.BigEndian.PutUint32(p, 1<<28|0xfffff) }), dropUnknownCID},
		{"another's address", forge(v, a, func(c *conn.Slot, _ []byte) { c.Inner.Src = c.Inner.Dst }), dropWrongAddress},
		{"Falcon version", forge(v, a, func(_ *conn.Slot, p []byte) { p[0] = 2 << 4 }), dropNotFalcon},
		{"Falcon protocol", forge(v, a, func(*conn.Slot, []byte) {}), dropFalcon},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, want [dropReasons]uint64
			for r := range dropReasons {
				before[r] = v.dropped(1, r)
			}
			want[tc.want] = 1
			v.inject(1, tc.frame)
			for r := range dropReasons {
				if n := v.dropped(1, r) - before[r]; n != want[r] {
					t.Errorf("%s counted %d times, want %d", r, n, want[r])
				}
			}
		})
	}
	exchange(t, a, b, 10_000)
}

// TestATenantsKeyOpensNoOtherTenantsConnection checks that a peer cannot use one tenant's key for another tenant's connection.
func TestATenantsKeyOpensNoOtherTenantsConnection(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 1000)
	sa, err := v.cores[1].Keys.Issue(security.Use{Peer: 1, Tenant: 8, Class: cm.ClassFalcon}) // issued to the same peer for tenant 8
	if err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[uint32]dropReason{8: dropConnectionPCID, 7: dropConnectionSPI} { // by their cookies
		frame := forge(v, a, func(c *conn.Slot, _ []byte) { v.sealWith(c, security.Use{Peer: 2, Tenant: tenant}, sa) })
		v.inject(1, frame)
		if n := v.dropped(1, want); n != 1 {
			t.Errorf("cookie of tenant %d: %s counted %d times, want once", tenant, want, n)
		}
	}
	if n := v.cores[1].Manager.CM.Stats().SPIRefused; n != 1 { // §9.2.2.3
		t.Errorf("the connection manager heard of %d failed SPI checks, want 1", n)
	}
	exchange(t, a, b, 1000)
}

// TestGarbageFramesDisturbNoConnection feeds random and damaged frames to both shards.
func TestGarbageFramesDisturbNoConnection(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	r := rand.New(devicetest.Seeded(99))
	var last []byte
	v.tap = func(_ int, f []byte) []byte { last = append(last[:0], f...); return f }
	exchange(t, a, b, 20_000)
	for range 3000 {
		f := make([]byte, r.IntN(200))
		for i := range f {
			f[i] = byte(r.Uint32())
		}
		v.inject(r.IntN(2), f)
		f = append([]byte(nil), last...)
		for range 1 + r.IntN(4) {
			f[r.IntN(min(len(f), 120))] = byte(r.Uint32())
		}
		v.inject(r.IntN(2), f[:r.IntN(len(f)+1)])
	}
	exchange(t, a, b, 20_000)
}

// TestOtherModeOfAPeerIsLogged checks that the log says once a minute that a peer seals in the
// other psp.mode, and that it is shown for a minute after its last packet.
func TestOtherModeOfAPeerIsLogged(t *testing.T) {
	const start, minute = falcon.Time(5e9), falcon.Time(60e9)
	var out bytes.Buffer
	log := &loglimit.Log{To: slog.New(slog.NewTextHandler(&out, nil))}
	p := &peer{name: "2"}
	v := PeerView{&Shard{peers: map[cm.PeerID]*peer{2: p, 3: {name: "3"}}}}
	for _, c := range []struct {
		at    falcon.Time
		comes bool
		lines int // total
		says  bool
	}{
		{0, false, 0, false},
		{0, true, 1, true},
		{minute - 1, false, 1, true},
		{minute, false, 1, false},
		{minute, true, 2, true},
		{2*minute - 1, true, 2, true},
		{2 * minute, true, 3, true},
		{3*minute - 1, true, 3, true},
		{4*minute - 2, false, 3, true},
		{4*minute - 1, false, 3, false},
	} {
		if c.comes {
			p.sealsOtherwise(start+c.at, log, config.PSPTunnel)
		}
		if n := bytes.Count(out.Bytes(), []byte("another psp.mode")); n != c.lines {
			t.Errorf("at %d: %d lines, want %d", c.at, n, c.lines)
		}
		if says := slices.Equal(v.OtherModes(start+c.at), []string{"2"}); says != c.says {
			t.Errorf("at %d: said %t", c.at, says)
		}
	}
	var nobody *peer
	nobody.sealsOtherwise(start, log, config.PSPTunnel)
}

// TestEveryCombinationOfIPVersionsCarriesData moves data in all four devicetest.Combinations of outer and inner IP versions,
// with a key rotation in between, and checks every frame.
func TestEveryCombinationOfIPVersionsCarriesData(t *testing.T) {
	devicetest.Combinations(t, func(t *testing.T, outer, inner int) {
		v := newVirtualWith(t, 1, wire100us, devicetest.IPVersions(outer, inner))
		sealed := 0
		v.tap = func(_ int, f []byte) []byte {
			if devicetest.CheckSealed(t, f, outer, inner) {
				sealed++
			}
			return f
		}
		a, b := pair(v)
		if g := a.fn.GID(); (g[10] == 0xff) != (inner == 4) {
			t.Errorf("GID %x", g)
		}
		exchange(t, a, b, 100_000)
		for _, core := range v.cores {
			if err := core.Keys.Rotate(v.now); err != nil {
				t.Fatal(err)
			}
		}
		exchange(t, a, b, 100_000)
		noKeyDrops(t, v)
		if sealed < 100 {
			t.Errorf("%d sealed frames", sealed)
		}
		for i, s := range v.all() {
			if n := s.drops[dropNotFalcon] + s.drops[dropWrongAddress]; n != 0 {
				t.Errorf("shard %d: %d dropped", i, n)
			}
		}
	})
}

// TestTransportModeCarriesFalconDirectlyInPSP moves data with Falcon directly in PSP, and checks every frame. A NIC in tunnel
// mode refuses such packets, and the other way round.
func TestTransportModeCarriesFalconDirectlyInPSP(t *testing.T) {
	mode := func(modes [2]string) *virtual {
		return newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { c.PSP.Mode = modes[i] })
	}
	v := mode([2]string{config.PSPTransport, config.PSPTransport})
	sealed := 0
	v.tap = func(_ int, f []byte) []byte {
		if h, n, err := psp.ParseHeader(f[min(42, len(f)):]); err == nil && len(f) > 60 {
			if h.NextHeader != psp.NextHeaderFalcon || h.HasVC || h.CryptOffset != 1 || f[42+n] != 0x10 {
				t.Fatalf("%+v: %x", h, f[:80])
			}
			sealed++
		}
		return f
	}
	a, b := pair(v)
	var pcap bytes.Buffer
	c, err := capture.New(&pcap, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	v.captureTo(1, c, config.CaptureClear)
	exchange(t, a, b, 100_000)
	for _, core := range v.cores {
		if err := core.Keys.Rotate(v.now); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, a, b, 100_000)
	noKeyDrops(t, v)
	_ = c.Close()
	if sealed < 100 || pcap.Len() < 200_000 {
		t.Errorf("%d sealed frames, %d bytes captured", sealed, pcap.Len())
	}
	for i := range 2 {
		modes := [2]string{config.PSPTunnel, config.PSPTunnel}
		modes[i] = config.PSPTransport
		v := mode(modes)
		a, b := pair(v)
		a.send(abi.OpWrite, 0, 64, b, 5)
		v.idle(1e9)
		if v.dropped(1, dropNotFalcon) == 0 {
			t.Errorf("%v: nothing was refused", modes)
		}
		if v.shards[1].peers[1].otherMode == 0 {
			t.Errorf("%v: nobody says why", modes)
		}
	}
}

// TestHopsAreCountedFromTheHopLimit checks that the hop count is computed from the IPv6 hop limit as from the IPv4 TTL.
func TestHopsAreCountedFromTheHopLimit(t *testing.T) {
	for limit, want := range map[uint8]uint8{
		255: 0, 254: 1, 240: 15, 200: 15, // start at 255
		128: 0, 125: 3, 65: 15, 64: 0, 60: 4, 1: 15, // peers that start at 128 or 64
	} {
		if got := hops(limit); got != want {
			t.Errorf("hop limit %d: %d hops, want %d", limit, got, want)
		}
	}
}

// TestMixedInnerVersions checks that a function of one IP version cannot connect to one of the
// other; the request fails and leaves nothing behind.
func TestMixedInnerVersions(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { devicetest.IPVersions(4, 4+2*i)(i, c) })
	a, b := drivers(v)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
	b.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: b.event(abi.EventConnectRequest).Number, QPN: b.qpn})
	a.event(abi.EventDisconnected)
	settled(t, v)
}

// joiner makes superframes as the TAP's kernel does, from consecutive frames of one length. Two
// bytes behind each frame hold what tap.Received would say.
type joiner struct {
	joined int // superframes made
	bufs   [txSlots][]byte
	out    [][]byte
}

func (j *joiner) join(frames [][]byte) [][]byte {
	j.out = j.out[:0]
	for len(frames) > 0 {
		first, run := frames[0], 1
		total := len(first)
		for run < len(frames) && len(frames[run]) == len(first) && len(first) > underlay.Headroom && total+len(first) < 1<<16 {
			total += len(first) - underlay.Headroom
			run++
		}
		buf, segment := &j.bufs[len(j.out)], 0
		*buf = append((*buf)[:0], first...)
		if run > 1 {
			j.joined++
			segment = len(first) - underlay.Headroom
			for _, f := range frames[1:run] {
				*buf = append(*buf, f[underlay.Headroom:]...)
			}
			setLengths(*buf)
		}
		*buf = binary.BigEndian.AppendUint16(*buf, uint16(segment))
		j.out, frames = append(j.out, *buf), frames[run:]
	}
	return j.out
}

// split removes the trailer.
func (j *joiner) split(b []byte) (frame []byte, segment int) {
	n := len(b) - 2
	if n < 0 {
		return nil, 0
	}
	return b[:n], int(binary.BigEndian.Uint16(b[n:]))
}

// setLengths sets the lengths in the outer IPv4 and UDP header to cover all of f.
func setLengths(f []byte) {
	ip, udp := f[14:34], f[34:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(udp)))
	ip[10], ip[11] = 0, 0
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
}

// TestSuperframesCrossABadWireWhole sends superframes over a wire that loses, repeats, reorders and damages
// them, segment sizes included: every byte arrives, and every packet of a superframe is counted
// once.
func TestSuperframesCrossABadWireWhole(t *testing.T) {
	v := newVirtual(t, 1, sim.Impairment{Delay: 100_000, Jitter: 20_000, Loss: 0.02, Duplicate: 0.01, Corrupt: 0.02})
	v.super = &joiner{}
	a, b := pair(v)
	exchange(t, a, b, 200_000)
	if v.super.joined == 0 {
		t.Fatal("no superframe was made")
	}
	for i, s := range v.all() {
		if d, n := s.uplink.underlay.Stats()[underlay.Deliver], accounted(s); d != n {
			t.Errorf("shard %d: %d packets delivered by the underlay, %d accounted for", i, d, n)
		}
	}
}

// FuzzReceive feeds frames, most of them damaged, to a shard with a working connection. None may
// stop it, and each that reaches PSP must be counted exactly once.
func FuzzReceive(f *testing.F) {
	v := newVirtual(f, 1, wire100us)
	seeds := 0
	v.tap = func(_ int, frame []byte) []byte {
		if seeds < 50 {
			f.Add(append([]byte(nil), frame...), 0)
			f.Add(append([]byte(nil), frame...), 100)
			seeds++
		}
		return frame
	}
	a, b := pair(v)
	for i, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
		a.send(op, 0, 300*(i+1), b, 0)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			f.Fatal(cqe.Status)
		}
	}
	v.tap = nil
	s := v.shards[1]
	f.Fuzz(func(t *testing.T, frame []byte, segment int) {
		delivered, done := s.uplink.underlay.Stats()[underlay.Deliver], accounted(s)
		v.now++
		s.in.receive(v.now, append([]byte(nil), frame...), segment)
		if d, n := s.uplink.underlay.Stats()[underlay.Deliver]-delivered, accounted(s)-done; d != n {
			t.Errorf("%d packets delivered by the underlay, %d accounted for", d, n)
		}
		if b.fn.Lifecycle.State() != abi.StateReady {
			t.Error("a frame stopped a function")
		}
	})
}

// accounted counts the PSP packets that were accepted or dropped.
func accounted(s *Shard) (n uint64) {
	for r := dropPSPMalformed; r <= dropFalcon; r++ {
		n += s.drops[r]
	}
	return n + s.counters.rxPackets
}
