package underlay

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// message returns a frame of neighbour discovery to us, fd00::2, from fd00::3, of any length.
func message(kind uint8, body []byte) []byte {
	f := make([]byte, ethLen+ipv6Len+len(body))
	putEthernet(f, macB, macC, typeIPv6)
	ip := ipv6{next: protoICMP6, hopLimit: ndHopLimit, src: ip6C.As16(), dst: ip6B.As16()}
	ip.put(f[ethLen:], len(body))
	m := f[ethLen+ipv6Len:]
	copy(m, body)
	m[0] = kind
	binary.BigEndian.PutUint16(m[2:], ^sum6(m, ip.src, ip.dst))
	return f
}

// asks returns the body of a solicitation for us with options.
func asks(options ...byte) []byte {
	b := make([]byte, ndLen)
	copy(b[8:], ip6B.AsSlice())
	return append(b, options...)
}

// TestDiscoveryIsChecked: messages with lengths, codes and options that RFC 4861 §7.1 refuses
// change nothing. The address is taken only from its own option.
func TestDiscoveryIsChecked(t *testing.T) {
	code, source := asks(), []byte{optSource, 1, 2, 0, 0, 0, 0, 3}
	code[1] = 1
	others := []byte{14, 1, 9, 9, 9, 9, 9, 9} // a nonce
	long := append([]byte{optSource, 2, 2, 9, 9, 9, 9, 9}, make([]byte, 8)...)
	for name, tc := range map[string]struct {
		body   []byte
		want   Verdict
		learnt bool
	}{
		"with its address":            {asks(source...), ND, true},
		"without":                     {asks(), ND, false},
		"another option":              {asks(others...), ND, false},
		"another option in front":     {asks(append(others, source...)...), ND, true},
		"an address of 14 bytes":      {asks(long...), ND, false},
		"the target's address":        {asks(optTarget, 1, 2, 9, 9, 9, 9, 9), ND, false},
		"a group's address":           {asks(optSource, 1, 3, 0, 0, 0, 0, 3), DropND, false},
		"a code":                      {code, DropND, false},
		"cut within the target":       {asks()[:16], DropND, false},
		"an option that is too long":  {asks(optSource, 2, 2, 0, 0, 0, 0, 3), DropND, false},
		"an option of no length":      {asks(optSource, 0, 2, 0, 0, 0, 0, 3), DropND, false},
		"a byte behind":               {asks(0), DropND, false},
		"two bytes behind":            {asks(optSource, 1), DropND, false},
		"less than a type and a code": {asks()[:8], DropND, false},
	} {
		b := newStack6(t, macB, ip6B)
		out := make([]byte, 1514)
		_, v := b.Input(0, message(ndSolicit, tc.body))
		if nb := b.neighbours[ip6C]; v != tc.want || (nb != nil) != tc.learnt || nb != nil && nb.mac != macC {
			t.Errorf("%s: %v, learnt %t", name, v, nb != nil)
		}
		if n := b.Next(out); n > 0 != (tc.want == ND) {
			t.Errorf("%s: an answer of %d bytes", name, n)
		}
	}
	b := newStack6(t, macB, ip6B)
	if _, v := b.Input(0, ndFrame(t, macB, macC, ip6B, ip6B, ip6C, ndSolicit, 0, true, 255)); v != DropConflict {
		t.Errorf("asked from our own address: %v", v)
	}
}

// TestAnAdvertisementChangesAnEntryAsItsStateAllows: checks the effect of an advertisement on an entry in each state (RFC 4861
// §7.2.5).
func TestAnAdvertisementChangesAnEntryAsItsStateAllows(t *testing.T) {
	const confirmed = 20 * second // by what comes then
	for name, tc := range map[string]struct {
		state state // before
		mac   bool  // the option is there
		same  bool  // with the address that is known
		flags uint8
		after state
		again bool // it is as if it had been confirmed then
	}{
		"an answer":                        {incomplete, true, true, flagSolicited, reachable, true},
		"an answer without an address":     {incomplete, false, false, flagSolicited, incomplete, false},
		"its address again":                {reachable, true, true, 0, reachable, true},
		"another":                          {reachable, true, false, flagSolicited, reachable, false},
		"nothing, asked by nobody":         {reachable, false, false, flagSolicited, reachable, false},
		"asked, it confirms":               {probing, false, false, flagSolicited, reachable, true},
		"not asked, it does not":           {probing, false, false, 0, probing, false},
		"it says that it overrides":        {probing, false, false, flagOverride, probing, false},
		"asked, it says its address":       {probing, true, true, 0, reachable, true},
		"asked, it says another's address": {probing, true, false, flagSolicited, probing, false},
	} {
		a := newStack6(t, macA, ip6A)
		a.Resolve(0, sealedAt(ip6B))
		nb := a.neighbours[ip6B]
		if tc.state != incomplete {
			a.believe(0, nb, macB)
		}
		if tc.state == probing {
			a.probe(confirmed, nb)
		}
		from := macC
		if tc.same {
			from = macB
		}
		a.Input(confirmed, ndFrame(t, macA, from, ip6B, ip6A, ip6B, ndAdvertise, tc.flags, tc.mac, 255))
		if nb.state != tc.after || (nb.confirmed == confirmed) != tc.again {
			t.Errorf("%s: state %d, confirmed at %d", name, nb.state, nb.confirmed)
		}
		if nb.state != incomplete && nb.mac != macB {
			t.Errorf("%s: it is at %x", name, nb.mac)
		}
	}
}

// TestOverheardMessagesAreLearntFromButNotAnswered: the stack learns from messages that another stack with the same addresses received;
// that stack answers.
func TestOverheardMessagesAreLearntFromButNotAnswered(t *testing.T) {
	b, out := newStack(t, macB, "10.0.0.2/24"), make([]byte, 1514)
	ask := arpFrame(broadcast, macC, arp{op: arpRequest, senderMAC: macC, senderIP: ipC.As4(), targetIP: ipB.As4()})
	b.Overhear(0, ask)
	if len(b.neighbours) != 1 || b.Next(out) != 0 || *b.Stats() != (Stats{}) {
		t.Errorf("%d neighbours, %v", len(b.neighbours), b.Stats())
	}
	b.Input(0, ask)
	if b.Next(out) == 0 {
		t.Error("its own frames are not answered")
	}
	six := newStack6(t, macB, ip6B)
	six.Overhear(0, message(ndSolicit, asks(optSource, 1, 2, 0, 0, 0, 0, 3)))
	groupMAC := MAC{0x33, 0x33, 0xff, 0, 0, 2}
	six.Overhear(0, ndFrame(t, groupMAC, macC, netip.IPv6Unspecified(), group(ip6B), ip6B, ndSolicit, 0, false, 255))
	if len(six.neighbours) != 1 || six.Next(out) != 0 {
		t.Errorf("%d neighbours", len(six.neighbours))
	}
}

// answers returns an ARP reply to us, 10.0.0.1, in which host C claims an address.
func answers(ip [4]byte) []byte {
	return arpFrame(macA, macC, arp{op: arpReply, senderMAC: macC, senderIP: ip, targetMAC: macA, targetIP: ipA.As4()})
}
