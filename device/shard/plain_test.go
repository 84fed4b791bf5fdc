package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/internal/allocs"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// newPortWorld returns two shards in virtual time. VF 1 of each has a port in tenant 7 and VF 4 one
// in tenant 8, with the same address.
func newPortWorld(t testing.TB, seed uint64) *virtual {
	t.Helper()
	return newPortWorldWith(t, seed, func(int, *config.Config) {})
}

func newPortWorldWith(t testing.TB, seed uint64, change func(i int, c *config.Config)) *virtual {
	t.Helper()
	v := newVirtualWith(t, seed, sim.Impairment{Delay: 10_000}, func(i int, c *config.Config) {
		c.Peers[0].Tenants = []uint32{7, 8}
		devicetest.AddPort(c, 0, &config.Port{Name: "vp1", Addresses: devicetest.Addrs(fmt.Sprintf("fd00:100::%d1", i+1))})
		devicetest.AddPort(c, 3, &config.Port{Name: "vp4"})
		change(i, c)
	})
	v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
	v.idle(5 * cmDelay)
	return v
}

// say puts a frame with a UDP datagram of n bytes into a port.
func (v *virtual) say(nic, port int, src, dst [4]byte, n int) {
	p := v.portAt(nic, port)
	f := make([]byte, 14+28+n)
	copy(f, p.Gateway[:])
	copy(f[6:], p.MAC[:])
	f[12] = 8
	ip := f[14:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+n))
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	devicetest.FinishHeader(ip[:20])
	binary.BigEndian.PutUint16(ip[24:], uint16(8+n))
	for i := range n {
		ip[28+i] = byte(i * 3)
	}
	v.ports[nic] = append(v.ports[nic], gateway.PortInput{From: p.Endpoint, Frame: f})
}

var (
	host1 = devicetest.Host1
	host2 = devicetest.Host2
)

func (v *virtual) reason(nic int, r gateway.Reason) uint64 {
	return v.sum(nic, func(s *Shard) uint64 { return s.plain.gw.Stats().Reasons[r] })
}

// sent returns how many packets a NIC's underlay sent.
func (v *virtual) sent(nic int) uint64 {
	return v.sum(nic, func(s *Shard) uint64 { return s.uplink.underlay.Stats()[underlay.Sent] })
}

// received runs for a while and returns the frames that arrived at a NIC's ports.
func (v *virtual) received(nic int) [][]byte {
	v.idle(1_000_000)
	got := v.arrived[nic]
	v.arrived[nic] = nil
	return got
}

func TestPlainIPCrossesSealedUnderItsTenantsCookie(t *testing.T) {
	v := newPortWorld(t, 1)
	var sealed [][]byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 {
			sealed = append(sealed, bytes.Clone(f))
		}
		return f
	}
	v.say(0, 0, host1, host2, 1000)
	want := bytes.Clone(v.ports[0][0].Frame[14:])
	got := v.received(1)
	if len(got) != 1 || !bytes.Equal(got[0][14:], want) || [6]byte(got[0][:6]) != v.portAt(1, 0).MAC {
		t.Fatalf("%d frames", len(got))
	}
	f := sealed[len(sealed)-1]
	h, _, err := psp.ParseHeader(f[42:])
	if err != nil || h.CryptOffset != 2 || h.VC != security.Cookie(7) || h.NextHeader != psp.NextHeaderIPv4 || bytes.Contains(f, want[40:80]) {
		t.Errorf("%+v %v: not sealed whole under the tenant's cookie", h, err)
	}
	last := h.IV
	v.say(0, 0, host1, host2, 10)
	v.received(1)
	if h, _, _ := psp.ParseHeader(sealed[len(sealed)-1][42:]); h.IV != last+1 {
		t.Errorf("IV %d after %d: the gateway's is a counter", h.IV, last)
	}
}

// TestPriorityTagsOfTheFabric checks that priority tags that switches put into every frame have no
// effect, and that a frame with a VLAN tag belongs to another network.
func TestPriorityTagsOfTheFabric(t *testing.T) {
	v := newPortWorld(t, 2)
	tci := uint16(0xa000)
	v.tap = func(_ int, f []byte) []byte {
		tagged := binary.BigEndian.AppendUint16(append(bytes.Clone(f[:12]), 0x81, 0), tci)
		return append(tagged, f[12:]...)
	}
	v.say(0, 0, host1, host2, 1000)
	want := bytes.Clone(v.ports[0][0].Frame[14:])
	if got := v.received(1); len(got) != 1 || !bytes.Equal(got[0][14:], want) {
		t.Fatalf("%d frames", len(got))
	}
	tci |= 1
	v.say(0, 0, host1, host2, 1000)
	if got := v.received(1); len(got) != 0 {
		t.Errorf("%d frames of a VLAN", len(got))
	}
}

// TestPlainTenantsApart checks that with equal addresses in two tenants each port receives from its
// own tenant only.
func TestPlainTenantsApart(t *testing.T) {
	v := newPortWorld(t, 2)
	for port := range 2 {
		v.say(0, port, host1, host2, 100+port)
	}
	got := v.received(1)
	if len(got) != 2 {
		t.Fatalf("%d frames", len(got))
	}
	slices.SortFunc(got, func(a, b []byte) int { return len(a) - len(b) }) // shards have no order
	for i, f := range got {
		if p := v.portAt(1, i); [6]byte(f[:6]) != p.MAC || len(f) != 14+28+100+i {
			t.Errorf("port %d got %d bytes for %x", i, len(f), f[:6])
		}
	}
}

// TestPlainBadInput checks that replays and changes by an attacker on the fabric are dropped and
// counted, and that nothing answers them.
func TestPlainBadInput(t *testing.T) {
	v := newPortWorld(t, 3)
	var seen []byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && len(f) > 300 {
			seen = bytes.Clone(f)
		}
		return f
	}
	v.say(0, 0, host1, host2, 300)
	if len(v.received(1)) != 1 {
		t.Fatal("no traffic")
	}
	drop := func(r dropReason) uint64 { return v.dropped(1, r) }
	inject := func(f []byte) {
		t.Helper()
		sent := v.sent(1)
		v.links[0].Send(v.now, f)
		if got := v.received(1); len(got) != 0 {
			t.Errorf("%x arrived", got[0])
		}
		if v.sent(1) != sent {
			t.Error("it was answered")
		}
	}
	inject(bytes.Clone(seen))
	if drop(dropReplay) != 1 {
		t.Error("the replay was not counted")
	}
	for i := 42; i < len(seen); i += 7 { // every field and some of the rest
		f := bytes.Clone(seen)
		f[i] ^= 0x10
		inject(f)
	}
	if drop(dropPSPAuth) < 30 || drop(dropReplay) != 1 {
		t.Errorf("%d authentications failed", drop(dropPSPAuth))
	}
	unknown := bytes.Clone(seen)
	unknown[42+4+2] ^= 0xff
	inject(unknown)
	if drop(dropPSPSPI) == 0 {
		t.Error("the unknown SPI was not counted")
	}
	for n := range len(seen) - 42 {
		f := bytes.Clone(seen[:42+n])
		binary.BigEndian.PutUint16(f[16:], uint16(28+n))
		binary.BigEndian.PutUint16(f[38:], uint16(8+n))
		devicetest.FinishHeader(f[14:34])
		inject(f)
	}
	if drop(dropPSPMalformed) == 0 {
		t.Error("no cut packet was counted")
	}
}

// TestPacketsOfAnExpiredSPIAreDropped checks that once a rotation is over, packets sealed before it have an unknown SPI,
// in both classes, and that nobody is told.
func TestPacketsOfAnExpiredSPIAreDropped(t *testing.T) {
	v := newPortWorld(t, 6)
	a, b := pair(v)
	var falconFrame, plainFrame []byte
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && len(f) > 1000 {
			falconFrame = bytes.Clone(f)
		}
		return f
	}
	exchange(t, a, b, 10_000)
	v.tap = func(from int, f []byte) []byte {
		if from == 0 && len(f) > 500 {
			plainFrame = bytes.Clone(f)
		}
		return f
	}
	v.say(0, 0, host1, host2, 500)
	if len(v.received(1)) != 1 {
		t.Fatal("no traffic")
	}
	v.tap = nil
	v.idle(2e9)
	exchange(t, a, b, 10_000)                                                   // moves the remote time past the margin
	for round, want := range []dropReason{dropReplay, dropReplay, dropPSPSPI} { // SPIs of the current generation, of the previous one, of none
		switch round {
		case 1:
			if err := v.cores[1].Keys.Rotate(v.now); err != nil {
				t.Fatal(err)
			}
			v.idle(5 * cmDelay)
		case 2:
			v.idle(2e9)
		}
		for name, f := range map[string][]byte{"Falcon": falconFrame, "plain IP": plainFrame} {
			before, sent := v.dropped(1, want), v.sent(1)
			v.inject(1, bytes.Clone(f))
			if n := v.dropped(1, want); n != before+1 {
				t.Errorf("%s, round %d: counted %d times as %s", name, round, n-before, want)
			}
			if v.sent(1) != sent || len(v.received(1)) != 0 {
				t.Errorf("%s, round %d: answered or delivered", name, round)
			}
		}
	}
	exchange(t, a, b, 10_000)
	v.say(0, 0, host1, host2, 500)
	if len(v.received(1)) != 1 {
		t.Error("no traffic with new keys")
	}
}

// TestPlainHostilePeer checks that a peer with a key for one tenant cannot send to another tenant
// by changing the cookie, and can send nothing but packets by it.
func TestPlainHostilePeer(t *testing.T) {
	v := newPortWorld(t, 4)
	issued, err := v.cores[1].Keys.Issue(security.Use{Peer: 1, Tenant: 7, Class: cm.ClassGateway})
	if err != nil {
		t.Fatal(err)
	}
	var last *psp.TxSA
	send := func(vc uint64, next uint8, packet []byte) [][]byte {
		t.Helper()
		sa, err := psp.NewGatewayTxSA(issued.Version, issued.SPI, issued.Key, vc, psp.VCLen/4)
		if err != nil {
			t.Fatal(err)
		}
		if last != nil {
			sa.Follow(last)
		}
		last = sa
		b := make([]byte, 2000)
		n, err := sa.SealFrom(v.now, next, b, packet)
		if err != nil {
			t.Fatal(err)
		}
		to := v.nics[1][0]
		if w, ok := to.in.opener.ShardOf(b[:n]); ok { // the shard that has its replay window
			to = v.nics[1][w]
		}
		to.in.unseal(v.now, &underlay.Datagram{}, b[:n])
		return v.received(1)
	}
	v.say(0, 0, host1, host2, 10)
	good := bytes.Clone(v.ports[0][0].Frame[14:])
	v.ports[0] = nil
	if len(send(security.Cookie(7), 4, good)) != 1 {
		t.Fatal("what is right does not arrive")
	}
	for name, tc := range map[string]struct {
		vc     uint64
		next   uint8
		packet []byte
		why    gateway.Reason
	}{
		"cookie of another tenant": {security.Cookie(8), 4, good, gateway.DropWrongVC},
		"another tunnel's cookie":  {security.Cookie(7) + 1, 4, good, gateway.DropWrongVC},
		"another kind":             {security.Cookie(7), 41, good, gateway.DropHeader},
		"Falcon by the header":     {security.Cookie(7), 252, good, gateway.DropHeader},
		"nothing":                  {security.Cookie(7), 4, nil, gateway.DropHeader},
	} {
		before := v.reason(1, tc.why)
		if got := send(tc.vc, tc.next, tc.packet); len(got) != 0 || v.reason(1, tc.why) != before+1 {
			t.Errorf("%s: %d frames, %v counted %d", name, len(got), tc.why, v.reason(1, tc.why)-before)
		}
	}
}

// TestNoPlainPacketIsLostWhileKeysChange checks that no packet is lost when keys are replaced under traffic, also when a
// key is nearly used up.
func TestNoPlainPacketIsLostWhileKeysChange(t *testing.T) {
	v := newPortWorld(t, 5)
	for i := range 5 {
		if err := v.cores[1].Keys.Rotate(v.now); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			v.say(0, 0, host1, host2, 100)
			v.idle(100_000)
		}
		v.idle(1_100_000_000)
		if n := len(v.received(1)); n != 30 {
			t.Fatalf("rotation %d: %d of 30 arrived", i, n)
		}
	}
	v.shards[0].txSAs.PacketLimit = 20 // for new keys
	if err := v.cores[1].Keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	v.idle(5 * cmDelay)
	for range 200 {
		v.say(0, 0, host1, host2, 100)
		v.idle(100_000_000)
	}
	if n := len(v.received(1)); n != 200 || v.dropped(0, dropTxSeal) != 0 {
		t.Errorf("%d of 200 arrived with keys for 20 packets each", n)
	}
}

// TestADisabledFunctionsAddressesAreWithdrawn checks that the peer loses the addresses of a function that is disabled, and
// gets them again when it is enabled.
func TestADisabledFunctionsAddressesAreWithdrawn(t *testing.T) {
	v := newPortWorld(t, 6)
	vf := v.portAt(1, 0).ID
	set := func(edit func(*config.Function)) {
		t.Helper()
		err := v.change(1, vf, func(f *config.Function) error {
			edit(f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		v.cores[1].Manager.Run(v.now)
		v.idle(5 * cmDelay)
	}
	speak := func() int {
		v.say(0, 0, host1, host2, 10)
		return len(v.received(1))
	}
	no, yes := false, true
	for name, tc := range map[string]struct{ off, on func(*config.Function) }{
		"disabled": {func(f *config.Function) { f.Enabled = &no }, func(f *config.Function) { f.Enabled = &yes }},
		"link":     {func(f *config.Function) { f.Link = pfvf.LinkDisable }, func(f *config.Function) { f.Link = pfvf.LinkAuto }},
	} {
		if speak() != 1 {
			t.Fatalf("%s: nothing arrives before", name)
		}
		set(tc.off)
		before := v.reason(0, gateway.DropNoRoute)
		if n := speak(); n != 0 || v.reason(0, gateway.DropNoRoute) == before {
			t.Errorf("%s: %d arrived", name, n)
		}
		set(tc.on)
	}
	if speak() != 1 {
		t.Error("nothing arrives after")
	}
	set(func(f *config.Function) { f.Tenant = 9 })
	if speak() != 0 {
		t.Error("arrived in another tenant")
	}
}

// TestACaptureHasPlainPacketsOfBothSides checks that a capture has the clear packets of both sides.
func TestACaptureHasPlainPacketsOfBothSides(t *testing.T) {
	v := newPortWorld(t, 7)
	var pcap [2]bytes.Buffer
	var captures [2]*capture.Capture
	var want []byte
	for i := range captures {
		c, err := capture.New(&pcap[i], config.CaptureBoth)
		if err != nil {
			t.Fatal(err)
		}
		v.captureTo(i, c, config.CaptureClear)
		captures[i] = c
	}
	v.say(0, 0, host1, host2, 100)
	want = bytes.Clone(v.ports[0][0].Frame[14:])
	v.received(1)
	for i, c := range captures {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(pcap[i].Bytes(), want) {
			t.Errorf("NIC %d: the packet is not in the capture", i+1)
		}
	}
}

// TestPlainNoAllocations checks that sealing packets of a port, and opening packets for one,
// allocates nothing.
func TestPlainNoAllocations(t *testing.T) {
	v := newPortWorld(t, 8)
	v.say(0, 0, host1, host2, 1000)
	v.received(1)
	v.say(0, 0, host1, host2, 1000)
	first := v.ports[0][0]
	v.ports[0] = nil
	work, in := bytes.Clone(first.Frame), []gateway.PortInput{first}
	frames, segments := make([][]byte, 1), make([]int, 1)
	arrived := 0
	if n := allocs.PerRun(100, func() {
		copy(work, first.Frame)
		in[0].Frame = work
		a, b := v.shards[0], v.shards[1]
		a.Ports().Take(in)
		a.Step(v.now, &thread.Input{}, v.out(a))
		v.out(a).Do()
		for _, f := range a.uplink.tx.Pending() {
			frames[0] = f
			b.Step(v.now, &thread.Input{Frames: frames, Segments: segments}, v.out(b))
			v.out(b).Do()
			arrived += len(b.plain.gw.Output())
			b.plain.gw.Done()
		}
		a.uplink.tx.Taken(len(a.uplink.tx.Pending()))
		b.uplink.tx.Taken(len(b.uplink.tx.Pending()))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if arrived < 100 {
		t.Errorf("%d arrived", arrived)
	}
}

// onlyPort returns the only port of a shard.
func onlyPort(s *Shard) *Port { return slices.Collect(s.plain.ports.all())[0] }

// portAt returns a port of a NIC by its place in the configuration.
func (v *virtual) portAt(nic, n int) *Port {
	var all []*Port
	for _, s := range v.nics[nic] {
		all = slices.AppendSeq(all, s.plain.ports.all())
	}
	slices.SortFunc(all, func(a, b *Port) int { return int(a.ID) - int(b.ID) })
	return all[n]
}

// keyless counts tunnels in tenant 7 that a port has no key for yet.
func (v *virtual) keyless() (n int) {
	for i := range v.nics {
		for _, s := range v.nics[i] {
			if !slices.ContainsFunc(slices.Collect(s.plain.ports.all()), func(p *Port) bool { return p.Tenant == 7 }) {
				continue
			}
			if t := s.plain.gw.Tunnels.To(v.peer(i), 7); t == nil || !t.Sealed() {
				n++
			}
		}
	}
	return n
}
