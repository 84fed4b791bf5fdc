package shard

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues"
)

// TestOtherModeIsTold checks that the log says once a minute that a peer seals in the other
// psp.mode, and that it is shown for a minute after its last packet.
func TestOtherModeIsTold(t *testing.T) {
	const start, minute = falcon.Time(5e9), falcon.Time(60e9)
	var out bytes.Buffer
	log := &loglimit.Log{To: slog.New(slog.NewTextHandler(&out, nil))}
	p := &peer{host: 2}
	v := View{&Shard{peers: map[cm.HostID]*peer{2: p, 3: {host: 3}}}}
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
		if says := slices.Equal(v.OtherModes(start+c.at), []uint8{2}); says != c.says {
			t.Errorf("at %d: said %t", c.at, says)
		}
	}
	var nobody *peer
	nobody.sealsOtherwise(start, log, config.PSPTunnel)
}

// TestOuterClass checks that the outer class has the DSCP of the inner one, and ECT(0).
func TestOuterClass(t *testing.T) {
	for class, want := range map[uint8]uint8{0: 2, 0xff: 0xfe, 0xb9: 0xba, 0x03: 2, 0x40: 0x42} {
		if got := outerClass(&conn.Slot{Inner: underlay.Inner{Class: class}}); got != want {
			t.Errorf("%#x: %#x, want %#x", class, got, want)
		}
	}
}

// TestOffloadCrosses checks that a frame's offload is the same on another shard.
func TestOffloadCrosses(t *testing.T) {
	for _, off := range []gateway.Offload{
		{},
		{NeedsCsum: true, CsumStart: 34, CsumOffset: 6},
		{GSO: gateway.GSOTCP6, NeedsCsum: true, Size: 1400, CsumStart: 54, CsumOffset: 16},
		{GSO: 0xff, NeedsCsum: true, Size: 0xfffe, CsumStart: 0xfdfc, CsumOffset: 0xfbfa},
	} {
		var h handover.Header
		if putOffload(&h, off); offloadOf(&h) != off {
			t.Errorf("%+v became %+v", off, offloadOf(&h))
		}
	}
}

// TestSentAt checks that the clock of a packet inside the NIC has the units of a sealed one, 2¹⁷
// ps.
func TestSentAt(t *testing.T) {
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

// TestTargets checks that a frame of the uplink goes to the shard of its connection, and a
// superframe to the shard of all its packets, if they have the same. Frames for no existing shard
// stay.
func TestTargets(t *testing.T) {
	keys, err := security.NewKeys(security.Config{Shards: 3, Rand: devicetest.Seeded(1)})
	if err != nil {
		t.Fatal(err)
	}
	const own, n = 1, 100
	o := &others{End: handover.New(3)[own], index: own, opener: keys.Opener(own), encap: security.Tunnel{}}
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
		want    int
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
		"for two":                   {frame(sealedFor(2, n), sealedFor(2, n), sealedFor(0, n)), n, several},
		"for two, one of us":        {frame(sealedFor(own, n), sealedFor(2, n)), n, several},
		"the last packet is cut":    {frame(sealedFor(2, n), sealedFor(2, n)[:20]), n, several},
		"one packet":                {frame(sealedFor(2, n)), n, 2},
	} {
		if got := o.target(tc.frame, tc.segment); got != tc.want {
			t.Errorf("%s: for %d, want %d", name, got, tc.want)
		}
	}
	f := frame(sealedFor(2, n), sealedFor(0, n), sealedFor(2, n-30))
	for i, want := range []int{underlay.Headroom + n, underlay.Headroom + n, underlay.Headroom + n - 30, 0} {
		if got := o.part(f, n, i); len(got) != want {
			t.Errorf("part %d has %d bytes, want %d", i, len(got), want)
		}
	}
}

// TestAssignedTo checks that a function is assigned to its guest by the CID that the transport
// vouches for, or by the attachment that bare clients come through.
func TestAssignedTo(t *testing.T) {
	for _, tc := range []struct {
		guest  *config.Guest
		attach string
		cid    uint32
		is     bool
	}{
		{nil, "bare", 0, false},
		{nil, "", 33, false},
		{&config.Guest{Unix: "bare"}, "bare", 0, true},
		{&config.Guest{Unix: "bare"}, "other", 0, false},
		{&config.Guest{Unix: "bare"}, "bare", 33, false}, // a virtual machine is no bare client
		{&config.Guest{CID: 33}, "", 33, true},
		{&config.Guest{CID: 33}, "", 34, false},
		{&config.Guest{CID: 33}, "", 0, false},
		{&config.Guest{}, "", 0, false},
	} {
		f := &function{cfg: config.Function{Guest: tc.guest}}
		if got := f.assignedTo(tc.attach, queues.Peer{CID: tc.cid}); got != tc.is {
			t.Errorf("%+v, a guest with id %d on %q: %t", tc.guest, tc.cid, tc.attach, got)
		}
	}
}

// TestCreditNumbers checks that zeros and unlimited credits are not shown, and that counters that
// the configuration does not limit for a connection are unlimited.
func TestCreditNumbers(t *testing.T) {
	var c credit.Cost
	for i := range c {
		c[i] = credit.Unlimited
	}
	c[0], c[1], c[2] = 0, 1, credit.Unlimited-1
	want := map[string]uint32{credit.Counter(1).String(): 1, credit.Counter(2).String(): credit.Unlimited - 1}
	if got := counts(c); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var cfg config.Config
	for i, v := range connectionCredits(&cfg) {
		if v != credit.Unlimited {
			t.Errorf("%s: %d where nothing is set", credit.Counter(i), v)
		}
	}
}

// TestRoomOfFrames checks that a frame has room for what the uplink carries, and for a packet that
// the transport fills in before its connection is known.
func TestRoomOfFrames(t *testing.T) {
	for _, tc := range []struct{ uplink, rdma int }{{1500, 1024}, {9000, 4096}, {4500, 4096}, {1280, 4096}} {
		var cfg config.Config
		cfg.Uplink.MTU, cfg.RDMA.MTU = tc.uplink, tc.rdma
		n := txBufferSize(&cfg)
		least := falconAt + max(tc.uplink+tap.FrameOverhead, tc.rdma+security.Trailer+40)
		if n < least || n > least+260 {
			t.Errorf("%+v: %d bytes", tc, n)
		}
	}
}

// TestSame checks that two nil values are the same, and two set values if they are equal.
func TestSame(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, tc := range []struct {
		a, b *netip.Addr
		same bool
	}{{nil, nil, true}, {&a, &a, true}, {&a, &b, true}, {&a, &c, false}, {&a, nil, false}, {nil, &a, false}} {
		if same(tc.a, tc.b) != tc.same {
			t.Errorf("%v and %v: the same %t", tc.a, tc.b, !tc.same)
		}
	}
}
