package shard

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestIPVersions moves data in all four devicetest.Combinations of outer and inner IP versions,
// with a key rotation in between, and checks every frame.
func TestIPVersions(t *testing.T) {
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

// TestTransportMode moves data with Falcon directly in PSP, and checks every frame. A NIC in tunnel
// mode refuses such packets, and the other way round.
func TestTransportMode(t *testing.T) {
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
	c, err := capture.New(&pcap)
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

// TestHops checks that the hop count is computed from the IPv6 hop limit as from the IPv4 TTL.
func TestHops(t *testing.T) {
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
