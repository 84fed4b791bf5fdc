package shard

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestPacketsHaveThePSPVersionOfTheReceiver runs each PSP version end to end, a different one in each direction: a NIC's version
// is that of the keys it issues.
func TestPacketsHaveThePSPVersionOfTheReceiver(t *testing.T) {
	for version := range uint8(4) {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { c.PSP.Version = (version + uint8(i)) % 4 })
			a, b := pair(v)
			text := bytes.Repeat([]byte("in the clear? "), 100)
			var seen [2]bool // by sender: the text was readable
			v.tap = func(from int, f []byte) []byte {
				if h, _, err := psp.ParseHeader(f[min(len(f), underlay.Headroom):]); err == nil && h.Version != (version+uint8(1-from))%4 {
					t.Fatalf("sender %d uses version %d", from, h.Version)
				}
				seen[from] = seen[from] || bytes.Contains(f, text)
				return f
			}
			for i, d := range []*driver{a, b} {
				copy(d.data(), text)
				d.send(abi.OpWrite, 0, len(text), []*driver{b, a}[i], 1<<20)
				if cqe := d.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				if want := (version+uint8(1-i))%4 >= psp.VersionGMAC128; seen[i] != want {
					t.Errorf("sender %d: readable on the wire: %v, want %v", i, seen[i], want)
				}
			}
			exchange(t, a, b, 100_000)
			noKeyDrops(t, v)
		})
	}
}

// TestEverySAHasALineInTheKeyLog checks for a line for each SA of either direction, with the key that works, in a file
// that only its owner can read; without the configuration there is nothing.
func TestEverySAHasALineInTheKeyLog(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	var logs [2]written
	var keyLogs [2]*security.KeyLog
	for i, core := range v.cores {
		l := security.NewKeyLog(&logs[i], func(err error) { t.Error(err) })
		core.Keys.LogTo(l)
		for _, s := range v.nics[i] {
			s.txSAs.LogTo(l)
		}
		keyLogs[i] = l
	}
	a, b := pair(v)
	exchange(t, a, b, 1000)
	if err := v.cores[0].Keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	v.idle(2e9)
	exchange(t, a, b, 1000)
	for _, l := range keyLogs {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{"rx", "tx", "rx"}, {"rx", "tx", "tx"}} {
		var got []string
		for line := range strings.Lines(logs[i].String()) {
			direction, rest, _ := strings.Cut(line, " ")
			got = append(got, direction)
			if direction == "rx" && !strings.Contains(logs[1-i].String(), "tx "+strings.SplitN(rest, " peer", 2)[0]) {
				t.Errorf("shard %d: the sender does not have %q", i, line)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) && fmt.Sprint(got) != fmt.Sprint([]string{want[1], want[0], want[2]}) {
			t.Errorf("shard %d: %q", i, logs[i].String())
		}
		sa, err := v.cores[i].Keys.Issue(security.Use{Peer: v.peer(i), Tenant: 7, Shard: uint8(v.shards[1-i].index)})
		if err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf("rx %08x 0 %s peer=%d tenant=7 class=falcon\n", sa.SPI, hex.EncodeToString(sa.Key), 2-i); !strings.Contains(logs[i].String(), line) {
			t.Errorf("shard %d: no %q in %q", i, line, logs[i].String())
		}
	}
}

// written is a file in memory.
type written struct{ bytes.Buffer }

func (*written) Close() error { return nil }

// TestKeysFollowRandomNumbers checks that other random numbers give other keys for the same SPIs,
// so that no IV repeats under a key at any clock, as long as each start has its own random numbers.
func TestKeysFollowRandomNumbers(t *testing.T) {
	seen := map[string]bool{}
	var spi uint32
	for range 4 {
		cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		core, err := controller.NewCore(controller.CoreConfig{NIC: cfg, Shards: 1, Rand: rand.Reader})
		if err != nil {
			t.Fatal(err)
		}
		sa, err := core.Keys.Issue(security.Use{Peer: 2, Tenant: 7})
		if err != nil || seen[string(sa.Key)] || spi != 0 && sa.SPI != spi {
			t.Fatalf("SPI %#x, key %x seen before: %v (%v)", sa.SPI, sa.Key, seen[string(sa.Key)], err)
		}
		seen[string(sa.Key)], spi = true, sa.SPI
	}
}

// rotatingEvery returns a pair of shards that rotate keys on their own.
func rotatingEvery(t *testing.T, seed uint64, every time.Duration) *virtual {
	t.Helper()
	return newVirtualWith(t, seed, wire100us, func(_ int, c *config.Config) { c.PSP.RotateEvery = &every })
}

// noKeyDrops checks that no packet failed a check of keys.
func noKeyDrops(t *testing.T, v *virtual) {
	t.Helper()
	for i := range v.nics {
		for _, r := range []dropReason{dropPSPMalformed, dropPSPSPI, dropPSPAuth, dropReplay, dropConnectionSPI, dropConnectionPCID, dropTxSeal} {
			if n := v.dropped(i, r); n != 0 {
				t.Errorf("NIC %d: %d dropped as %s", i, n, r)
			}
		}
	}
}

// TestRotateUnderLoad rotates both NICs' keys every 50 ms while data flows in both directions, and
// checks that no packet is dropped for its key and that every byte arrives.
func TestRotateUnderLoad(t *testing.T) { eachShards(t, testRotateUnderLoad) }

func testRotateUnderLoad(t *testing.T) {
	const every = 50 * time.Millisecond
	v := rotatingEvery(t, 1, every)
	v.tell = false
	a, b := pair(v)
	exchange(t, a, b, 1000) // addresses are resolved, packets parked too long are gone
	v.idle(1e6)
	sent := func(i int) uint64 { return v.sum(i, func(s *Shard) uint64 { return s.counters.txPackets }) }
	taken := func(i int) uint64 {
		return v.sum(i, func(s *Shard) uint64 { return s.counters.rxPackets }) + v.dropped(i, dropFalcon)
	}
	var lost [2]uint64
	for i := range v.nics {
		lost[i] = sent(i) - taken(1-i)
	}
	const n = 256 << 10
	start := v.now
	for round := 0; v.now < start+550e6; round++ {
		for i := range n {
			a.data()[i], b.data()[i] = byte(i*13+round), byte(i*7+i>>8+round)
		}
		a.send(abi.OpWrite, 0, n, b, 1<<20)
		b.send(abi.OpWrite, 0, n, a, 1<<20)
		v.idle(700_000) // some packets are in flight when keys change, and some not
		for _, d := range []*driver{a, b} {
			if cqe := d.done(); cqe.Status != abi.WCSuccess {
				t.Fatalf("round %d: %s", round, cqe.Status)
			}
		}
		if !bytes.Equal(b.data()[1<<20:1<<20+n], a.data()[:n]) || !bytes.Equal(a.data()[1<<20:1<<20+n], b.data()[:n]) {
			t.Fatalf("round %d: data differs", round)
		}
		a.collect()
		b.collect()
	}
	v.idle(1e9)
	noKeyDrops(t, v)
	for i, s := range v.all() {
		if want := uint64((v.now - start) / int64(every)); v.core(s).Keys.Stats().Rotations < want-1 || want < 10 {
			t.Errorf("shard %d: %d rotations in %d periods", i, v.core(s).Keys.Stats().Rotations, want)
		}
		if sent, got := sent(i), taken(1-i); sent != got+lost[i] {
			t.Errorf("NIC %d sealed %d packets, %d came to the other's transport", i, sent, got)
		}
		if n := v.core(s).Keys.Stats().SPIs; n > 2 {
			t.Errorf("shard %d: %d SPIs for one peer and tenant", i, n)
		}
	}
}

// TestConnectionsKeepTheirKeysDuringAnOutage checks that while the managers' link is down connections continue with their
// keys; after that the new ones are exchanged, and nothing is lost in either direction.
func TestConnectionsKeepTheirKeysDuringAnOutage(t *testing.T) { eachShards(t, testRotateOutage) }

func testRotateOutage(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	s := v.shards[0]
	v.linkDown()
	if err := v.core(s).Keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	exchange(t, a, b, 100_000)
	v.idle(30e9)
	if err := v.core(s).Keys.Rotate(v.now); !errors.Is(err, security.ErrRotating) {
		t.Errorf("second rotation while the first is not confirmed: %v", err)
	}
	exchange(t, a, b, 100_000)
	v.linkUp()
	exchange(t, a, b, 100_000)
	v.idle(2e9)
	if st := v.core(s).Keys.Stats(); st.Unsettled != 0 || st.Generation != 1 {
		t.Errorf("rotation not finished: %+v", st)
	}
	if err := v.core(s).Keys.Rotate(v.now); err != nil {
		t.Error(err)
	}
	exchange(t, a, b, 100_000)
	noKeyDrops(t, v)
}

// TestRotatePeerRestarts checks that a rotation does not wait for a peer that has lost all its
// keys, even if no other rotation is planned.
func TestRotatePeerRestarts(t *testing.T) { eachShards(t, testRotatePeerRestarts) }

func testRotatePeerRestarts(t *testing.T) {
	v := rotatingEvery(t, 1, 0)
	pair(v)
	s := v.shards[0]
	v.linkDown()
	if err := v.core(s).Keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	v.idle(10e9)
	if err := v.core(s).Keys.Rotate(v.now); !errors.Is(err, security.ErrRotating) {
		t.Fatal("finished without the peer:", err)
	}
	v.core(s).Keys.ForgetPeer(v.peer(0))
	v.idle(1e9)
	if err := v.core(s).Keys.Rotate(v.now); err != nil {
		t.Error(err)
	}
}

// TestAnUnreachablePeersKeyLastsOnePeriodMore checks that a peer that cannot be told keeps an old key valid for exactly
// one more period.
func TestAnUnreachablePeersKeyLastsOnePeriodMore(t *testing.T) {
	v := rotatingEvery(t, 1, 10*time.Second)
	a, b := pair(v)
	s := v.shards[0]
	v.linkDown()
	sealsWith := func() uint32 { return s.txSAs.List()[0].SPI }
	first := sealsWith() // the key that the peer gave us
	v.idle(19e9)
	exchange(t, a, b, 10_000)
	noKeyDrops(t, v)
	v.idle(12e9)
	if !v.cores[1].Keys.Issued(security.Use{Peer: 1, Tenant: 7, Shard: uint8(s.index)}) || v.cores[1].Keys.Stats().Rotations != 2 {
		t.Fatalf("%d rotations", v.cores[1].Keys.Stats().Rotations)
	}
	a.send(abi.OpWrite, 0, 100, b, 0)
	v.idle(1e9)
	if v.dropped(1, dropPSPSPI) == 0 {
		t.Error("a key two generations old was accepted")
	}
	v.linkUp() // in time for the transport: it continues
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Error(cqe.Status)
	}
	if sealsWith() == first {
		t.Error("the old key is still used")
	}
	exchange(t, a, b, 10_000)
}

// TestAKeyIsReplacedBeforeItIsUsedUp checks that a key with a low packet limit is replaced before it is used up.
func TestAKeyIsReplacedBeforeItIsUsedUp(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	for _, s := range v.all() {
		s.txSAs.PacketLimit = 2000
	}
	a, b := pair(v)
	for range 30 {
		exchange(t, a, b, 200_000)
		v.idle(600e6) // at most one new key per linger: half a key must last that long
		a.collect()
		b.collect()
	}
	noKeyDrops(t, v)
	for i, s := range v.all() {
		if n := v.core(s).Manager.CM.Stats().RekeyRequests; n < 3 {
			t.Errorf("shard %d: %d keys were asked for", i, n)
		}
		if v.core(s).Keys.Stats().Rotations != 0 {
			t.Errorf("shard %d rotated", i)
		}
	}
}

// TestNewConnectionsWhileRotating opens connections one after the other while keys change during
// the handshakes.
func TestNewConnectionsWhileRotating(t *testing.T) { eachShards(t, testNewConnectionsWhileRotating) }

func testNewConnectionsWhileRotating(t *testing.T) {
	v := rotatingEvery(t, 5, 2*time.Millisecond)
	a, b := drivers(v)
	for i := range 20 {
		if i > 0 {
			a.createQPAgain()
			b.createQPAgain()
		}
		a.connectTo(b, uint64(i+1))
		exchange(t, a, b, 30_000)
		a.collect()
		b.collect()
		a.async, b.async = nil, nil
	}
	noKeyDrops(t, v)
}

// TestPacketsOfTheGatewayClassNeverReachTheTransport checks that a peer gets a key of the gateway class on request, and that packets
// sealed with it never reach the transport, even with Falcon inside.
func TestPacketsOfTheGatewayClassNeverReachTheTransport(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	exchange(t, a, b, 1000)
	use := security.Use{Peer: 1, Tenant: 7, Class: cm.ClassGateway}
	for range 2 { // the same at every request
		if err := v.cores[0].Manager.CM.RequestRekey(security.Use{Peer: v.peer(0), Tenant: 7, Class: cm.ClassGateway}, 0); err != nil {
			t.Fatal(err)
		}
		v.idle(1e9)
	}
	if !v.cores[1].Keys.Issued(use) || v.cores[1].Manager.CM.Stats().Rekeyed != 2 {
		t.Fatal("no key of the gateway class")
	}
	sa, err := v.cores[1].Keys.Issue(use)
	if err != nil {
		t.Fatal(err)
	}
	accepted := v.shards[1].counters.rxPackets
	frame := forge(v, a, func(c *conn.Slot, _ []byte) { v.sealWith(c, use, sa) })
	v.inject(1, bytes.Clone(frame))
	if n := v.dropped(1, dropNoGateway); n != 1 || v.shards[1].counters.rxPackets != accepted {
		t.Errorf("%d counted, %d accepted", n, v.shards[1].counters.rxPackets-accepted)
	}
	v.inject(1, frame)
	if n := v.dropped(1, dropReplay); n != 1 {
		t.Errorf("again: %d counted as replay", n)
	}
	for _, core := range v.cores {
		if err := core.Keys.Rotate(v.now); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, a, b, 1000)
	v.idle(2e9)
	for _, k := range v.cores[1].Keys.List() {
		if k.Use == use && (k.SPI == sa.SPI || k.Previous != 0) {
			t.Errorf("gateway key after a rotation: %+v", k)
		}
	}
}
