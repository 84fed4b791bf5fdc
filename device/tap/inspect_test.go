package tap

import (
	"encoding/binary"
	"testing"
)

// super returns the header and frame of a well-formed IPv4 superframe of payload bytes.
func super(payload, segment int) (vnetHeader, []byte) {
	first := make([]byte, 42+segment)
	first[12] = 0x08
	ip := first[14:]
	ip[0], ip[8], ip[9] = 0x45, 255, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	f := make([]byte, 42+payload)
	var vnet [vnetHeaderLen]byte
	putHeaders(vnet[:], f[:42], first, len(f), 42)
	return parseVnetHeader(vnet[:]), f
}

func TestOnlyWellFormedSuperframesAreAccepted(t *testing.T) {
	const mtu = 1500
	for name, tc := range map[string]struct {
		change func(h *vnetHeader, f []byte) []byte
		ok     bool
	}{
		"well formed":         {func(_ *vnetHeader, f []byte) []byte { return f }, true},
		"header length lies":  {func(h *vnetHeader, f []byte) []byte { h.headerLen = 65535; return f }, true}, // nobody looks at it
		"TCP":                 {func(h *vnetHeader, f []byte) []byte { h.gsoType = 1; return f }, false},
		"UFO":                 {func(h *vnetHeader, f []byte) []byte { h.gsoType = 3; return f }, false},
		"ECN":                 {func(h *vnetHeader, f []byte) []byte { h.gsoType |= 0x80; return f }, false},
		"no segment size":     {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 0; return f }, false},
		"one segment":         {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 5000; return f }, false},
		"segment above MTU":   {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 1473; return f }, false},
		"segment at MTU":      {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 1472; return f }, true},
		"129 segments":        {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 38; return f }, false},
		"128 segments":        {func(h *vnetHeader, f []byte) []byte { h.gsoSize = 40; return f }, true},
		"cut":                 {func(_ *vnetHeader, f []byte) []byte { return f[:len(f)-1] }, false},
		"longer than it says": {func(_ *vnetHeader, f []byte) []byte { return append(f, 0) }, false},
		"UDP length":          {func(_ *vnetHeader, f []byte) []byte { f[39]++; return f }, false},
		"not UDP":             {func(_ *vnetHeader, f []byte) []byte { f[23] = 6; return f }, false},
		"IP options":          {func(_ *vnetHeader, f []byte) []byte { f[14] = 0x46; return f }, false},
		"fragment":            {func(_ *vnetHeader, f []byte) []byte { f[20] = 0x20; return f }, false},
		"ARP":                 {func(_ *vnetHeader, f []byte) []byte { f[13] = 6; return f }, false},
		"runt":                {func(_ *vnetHeader, f []byte) []byte { return f[:20] }, false},
		"empty":               {func(_ *vnetHeader, _ []byte) []byte { return nil }, false},
		"plain, too long":     {func(h *vnetHeader, f []byte) []byte { *h = vnetHeader{}; return f }, false},
	} {
		h, f := super(5000, 1000)
		if f = tc.change(&h, f); f != nil && name == "runt" && len(f) != 20 {
			t.Fatal()
		}
		if _, ok := inspect(h, f, mtu); ok != tc.ok {
			t.Errorf("%s: accepted %v", name, ok)
		}
	}
}

// FuzzInspect: whatever the kernel sends, an accepted superframe can be cut within its bounds.
func FuzzInspect(f *testing.F) {
	h, frame := super(5000, 1000)
	var vnet [vnetHeaderLen]byte
	h.put(vnet[:])
	f.Add(vnet[:], frame)
	f.Add(make([]byte, vnetHeaderLen), frame[:100])
	f.Fuzz(func(t *testing.T, vnet, frame []byte) {
		if len(vnet) < vnetHeaderLen {
			return
		}
		const mtu = 1500
		r, ok := inspect(parseVnetHeader(vnet), frame, mtu)
		switch {
		case !ok:
		case r.Len != len(frame) || r.Len < MinFrame:
			t.Errorf("%+v of %d bytes", r, len(frame))
		case r.Segment == 0 && r.Len > mtu+FrameOverhead:
			t.Errorf("a plain frame of %d bytes", r.Len)
		case r.Segment != 0:
			headers := headersOf(frame)
			if n := r.datagrams(headers); headers == 0 || n < 2 || n > maxSegments || r.Segment > mtu || headers+(n-1)*r.Segment >= r.Len {
				t.Errorf("%+v: %d datagrams behind %d bytes", r, n, headers)
			}
		}
	})
}

// FuzzRun: the frames of a run differ only in fields that a superframe keeps, and inspect accepts
// the superframe.
func FuzzRun(f *testing.F) {
	_, frame := super(300, 300)
	f.Add(frame, uint16(20), uint8(0), uint8(0))
	f.Add(frame, uint16(0), uint8(30), uint8(1))
	f.Fuzz(func(t *testing.T, first []byte, cut uint16, at, bit uint8) {
		if len(first) == 0 || len(first) > 1514 {
			return
		}
		second := append([]byte(nil), first...)
		if int(at) < min(len(second), maxHeaders) {
			second[at] ^= bit
		}
		second = second[:len(second)-int(cut)%len(second)]
		both := runOf([][]byte{first, second}, 128)
		if both.frames == 1 {
			return
		}
		total, headers := both.total, both.headers
		for i := range headers {
			ip, udp := i-ethernetLen, i-(headers-udpLen)
			variable := udp >= 4 || headers == maxHeaders && (ip == 4 || ip == 5) || headers != maxHeaders && (ip == 2 || ip == 3 || ip == 10 || ip == 11)
			if first[i] != second[i] && !variable {
				t.Fatalf("headers differ at byte %d", i)
			}
		}
		super := make([]byte, total)
		var vnet [vnetHeaderLen]byte
		putHeaders(vnet[:], super[:headers], first, total, headers)
		r, ok := inspect(parseVnetHeader(vnet[:]), super, 1500)
		if ok && (r.Segment != len(first)-headers || r.datagrams(headers) != 2) {
			t.Fatalf("%+v", r)
		}
	})
}
