package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// left is the end of a frame in its guest's memory.
type left struct {
	there   []byte
	room    []byte
	fetched bool
	lost    bool
}

func (l *left) Len() int { return len(l.room) }

func (l *left) Fetch() bool {
	if !l.fetched && !l.lost {
		copy(l.room, l.there)
	}
	l.fetched = true
	return !l.lost
}

// minHead is the least number of bytes that ports copy.
const minHead = ethLen + ipv6Len

// inTwo returns a frame of which only the first n bytes were copied.
func inTwo(p *Endpoint, f []byte, n int, off Offload) (*PortInput, *left) {
	if n >= len(f) {
		return &PortInput{From: p, Frame: bytes.Clone(f), Offload: off}, nil
	}
	room := bytes.Repeat([]byte{0xee}, len(f)) // that of other frames before
	copy(room, f[:n])
	l := &left{there: f[n:], room: room[n:]}
	return &PortInput{From: p, Frame: room[:n], Offload: off, Rest: l}, l
}

// put is like send, for a frame of which only a part was copied.
func (n *net) put(in *PortInput) (packets [][]byte) {
	n.t.Helper()
	if n.g.FromPort(second, in, &n.fwd) {
		for b := n.fwd.Next(); b != nil; b = n.fwd.Next() {
			packets = append(packets, bytes.Clone(b))
		}
	}
	return packets
}

// same compares the output of two gateways for a frame, of which one gets only the first bytes.
func same(t testing.TB, one, two *net, f []byte, copied int, off Offload) {
	t.Helper()
	in, _ := inTwo(two.a, f, copied, off)
	want, got := one.send(bytes.Clone(f), off), two.put(in)
	if !bytes.Equal(bytes.Join(want, []byte("|")), bytes.Join(got, []byte("|"))) {
		t.Fatalf("%d of %d bytes copied: %d packets for the tunnel, want %d", copied, len(f), len(got), len(want))
	}
	a, b := one.output(), two.output()
	if len(a) != len(b) {
		t.Fatalf("%d of %d bytes copied: %d frames for ports, want %d", copied, len(f), len(b), len(a))
	}
	for i := range a {
		if a[i].port.Name != b[i].port.Name || a[i].off != b[i].off || !bytes.Equal(a[i].b, b[i].b) {
			t.Fatalf("%d of %d bytes copied: at %s\n%x, want\n%x", copied, len(f), b[i].port.Name, b[i].b, a[i].b)
		}
	}
	if *one.g.Stats() != *two.g.Stats() {
		t.Fatalf("%d of %d bytes copied: %+v, want %+v", copied, len(f), *two.g.Stats(), *one.g.Stats())
	}
}

// moreSamples returns frames for a port of the shard, and frames that cause errors or answers.
func moreSamples(t testing.TB) (list [][]byte) {
	far := udp(t, gwA, macA, ipA, addr("10.2.0.1"), 300) // a router's work
	late := bytes.Clone(far)
	late[ethLen+8] = 1
	finishIPv4(late[ethLen:], ipv4Len)
	ip := ip4(ipA, router4, layers.IPProtocolICMPv4)
	ping := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)}, gopacket.Payload(make([]byte, 600)))
	deep := udp(t, gwA, macA, v6A, v6B, 800) // options up to far behind the beginning
	deep[20] = protoDstOpts
	deep[54], deep[55] = protoUDP, 60
	padded := append(udp(t, gwA, macA, ipA, ipB, 400), make([]byte, 100)...)
	return [][]byte{
		udp(t, gwA, macA, ipA, ipB, 1300), udp(t, gwA, macA, v6A, v6B, 1300), udp(t, gwA, macA, ipA, ipB, 1500), udp(t, gwA, macA, v6A, v6B, 1500),
		udp(t, gwA, macA, ipA, addr("10.0.0.200"), 900), udp(t, gwA, macA, ipA, ipA, 900), far, late, ping, deep, padded,
	}
}

// The gateway's output does not depend on how much of a frame a port has copied.
func TestRestChangesNothing(t *testing.T) {
	one, two := newNet(t), newNet(t)
	for _, f := range append(samples(t), moreSamples(t)...) {
		for copied := minHead; copied <= len(f); copied += 1 + copied/40 {
			same(t, one, two, f, copied, Offload{})
		}
	}
	for _, to := range []string{"10.0.0.2", "10.0.0.3", "10.2.0.1"} {
		f, off := whole(t, ipA, addr(to), layers.IPProtocolTCP, 12, 4000, 1400, tcpPSH)
		for copied := minHead; copied <= len(f); copied += 97 {
			same(t, one, two, f, copied, off)
		}
	}
}

// TCP and UDP payload between two ports stays where it is. Everything else is copied first, and the
// frame is dropped if that fails.
func TestWhatStays(t *testing.T) {
	const copied = 256
	tcp, tso := whole(t, v6A, v6B, layers.IPProtocolTCP, 12, 4000, 1400, 0)
	for i, f := range [][]byte{udp(t, gwA, macA, ipA, ipB, 1000), tcp} {
		n := newNet(t)
		off := []Offload{{}, tso}[i]
		in, l := inTwo(n.a, f, copied, off)
		n.put(in)
		out := n.g.Output()
		if len(out) != 1 || l.fetched || out[0].Rest != l || len(out[0].Parts) != 1 || !bytes.Equal(out[0].Parts[0][ethLen:], f[ethLen:copied]) || out[0].GSO != off.GSO {
			t.Errorf("%d: %d frames, fetched %v", i, len(out), l.fetched)
		}
	}
	dhcp := longOption(dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, ipA), 200)
	frames := append(moreSamples(t)[2:], dhcp, udp(t, gwA, macA, ipA, ipC, 1000), append(arpFrame(macA, ipA, ipB), make([]byte, 300)...))
	for i, f := range frames {
		if bytes.Equal(f, moreSamples(t)[5]) || bytes.Equal(f, moreSamples(t)[6]) {
			continue // to itself: dropped unseen; and one that a router passes on
		}
		n := newNet(t)
		in, l := inTwo(n.a, f, copied, Offload{})
		n.put(in)
		if n.output(); !l.fetched {
			t.Errorf("frame %d was not copied", i)
		}
		n = newNet(t)
		in, l = inTwo(n.a, f, copied, Offload{})
		l.lost = true
		if p := n.put(in); p != nil {
			t.Errorf("frame %d went on without its end", i)
		}
		for _, o := range n.output() { // errors may quote what there is
			if o.port != n.a || len(o.b) > ethLen+ipv6Len+icmpLen+copied {
				t.Errorf("frame %d: %x at %s", i, o.b, o.port.Name)
			}
		}
		if n.g.Stats().Reasons[DropPanic] != 0 {
			t.Errorf("frame %d: panic", i)
		}
	}
}

// kept records frames for other shards.
type kept struct{ frames [][]byte }

func (k *kept) ToPort(_ uint8, _, _ uint32, frame []byte, _ Offload) bool {
	k.frames = append(k.frames, bytes.Clone(frame))
	return true
}

func (k *kept) ToGroup(uint8, uint32, uint32, []byte) bool { return false }

// A frame for another shard, or for a port's function, is copied first.
func TestRestBeyondPorts(t *testing.T) {
	f := udp(t, gwA, macA, ipA, ipB, 1000)
	n, other := newNet(t), &kept{}
	n.g.Handover = other
	n.g.RemoveEndpoint(n.b)
	n.g.routes.SetPort(2, Place{Shard: 1, Tenant: 7, Addresses: addrs("10.0.0.2"), MTU: tunnelMTU, Up: true})
	in, _ := inTwo(n.a, f, 256, Offload{})
	n.put(in)
	if len(other.frames) != 1 || !bytes.Equal(other.frames[0], f) {
		t.Errorf("%d frames for the other shard", len(other.frames))
	}

	n = newNet(t)
	var packets [][]byte
	n.b.SetRoCE(hearing(func(p []byte) { packets = append(packets, bytes.Clone(p)) }))
	binary.BigEndian.PutUint16(f[ethLen+ipv4Len+2:], rocePort)
	in, _ = inTwo(n.a, f, 256, Offload{})
	n.put(in)
	if len(packets) != 1 || !bytes.Equal(packets[0], f[ethLen:]) || len(n.output()) != 0 {
		t.Errorf("%d packets for the function", len(packets))
	}
}

// taking is a port's device. gathering also accepts frames whose end is elsewhere (Gatherer).
type taking struct {
	Port
	plain  bool // it takes nothing that is left to do
	frames [][]byte
}

type gathering struct {
	taking
	with []Rest
}

func (p *taking) Takes(off Offload) bool { return !p.plain || off.plain() }

func (p *taking) Write(parts [][]byte, _ Offload) bool {
	p.frames = append(p.frames, bytes.Join(parts, nil))
	return true
}

func (p *gathering) WriteWith(head []byte, rest Rest, _ Offload) bool {
	p.frames, p.with = append(p.frames, bytes.Clone(head)), append(p.with, rest)
	return true
}

// If a device does not accept a frame whose end is elsewhere, or its guest needs frames to be cut,
// the end is copied first.
func TestDeliverRest(t *testing.T) {
	f, off := whole(t, ipA, ipB, layers.IPProtocolTCP, 0, 4000, 1000, 0)
	for _, lost := range []bool{false, true} {
		gather, copying := &gathering{}, &taking{}
		gatherPlain, copyingPlain := &gathering{taking: taking{plain: true}}, &taking{plain: true}
		for _, port := range []Port{gather, copying, gatherPlain, copyingPlain} {
			n := newNet(t)
			n.b.Port = port
			in, l := inTwo(n.a, f, 256, off)
			l.lost = lost
			n.put(in)
			took := 0
			n.g.Deliver(func(*PortFrame) { took++ })
			st := n.g.Stats()
			if refused := lost && port != Port(gather); (took == 0) != refused || (n.b.Drops[DropPortFull] == 1) != refused {
				t.Errorf("%T: %d taken, %d refused, lost %v", port, took, n.b.Drops[DropPortFull], lost)
			}
			if port == Port(gather) && (l.fetched || st.ToPortBytes != uint64(len(f))) {
				t.Errorf("fetched %v, %d bytes", l.fetched, st.ToPortBytes)
			}
		}
		if len(gather.with) != 1 || len(gather.frames[0]) != 256 {
			t.Error("the end of a frame was not given where it is")
		}
		if lost {
			continue
		}
		if len(copying.frames) != 1 || !bytes.Equal(copying.frames[0][ethLen:], f[ethLen:]) {
			t.Error("the whole frame differs")
		}
		for _, p := range [][][]byte{gatherPlain.frames, copyingPlain.frames} {
			if len(p) != 4 {
				t.Fatalf("cut to %d packets", len(p))
			}
			for _, b := range p {
				if h, why := parseIP(b[ethLen:]); why != none || !h.l4Valid(b[ethLen:]) {
					t.Errorf("%v: %x", why, b)
				}
			}
		}
	}
}
