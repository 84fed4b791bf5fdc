package tap

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// plain returns a frame with a UDP datagram of payload bytes, of one flow, and its headers' length.
func plain(v6 bool, payload int) (f []byte, headers int) {
	headers = ethernetLen + ipv4Len + udpLen
	if v6 {
		headers = maxHeaders
	}
	f = make([]byte, headers+payload)
	if ip := f[ethernetLen:]; v6 {
		binary.BigEndian.PutUint16(f[12:], typeIPv6)
		ip[0], ip[6] = 0x60, 17
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(f[12:], typeIPv4)
		ip[0], ip[9] = 0x45, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	}
	binary.BigEndian.PutUint16(f[headers-4:], uint16(udpLen+payload))
	return f, headers
}

// TestRunsAreOfOneFlow: a frame joins a superframe if its headers equal those of the first frame,
// except for the UDP checksum and, for a shorter frame, the fields that depend on its length. A
// difference in any other byte prevents joining.
func TestRunsAreOfOneFlow(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, last := range []int{100, 99, 1} {
			first, headers := plain(v6, 100)
			udp := headers - udpLen
			may := []int{udp + 6, udp + 7}
			if v6 || last < 100 {
				may = append(may, udp+4, udp+5)
			}
			if !v6 && last < 100 {
				may = append(may, ethernetLen+10, ethernetLen+11)
			}
			for i := range headers {
				f, _ := plain(v6, last)
				f[i] ^= 0x10
				want := 1
				if slices.Contains(may, i) {
					want = 2
				}
				if r := runOf([][]byte{first, f}, 64); r.frames != want || want == 2 && r.total != len(first)+last {
					t.Errorf("IPv6 %t, %d bytes behind 100, header byte %d is another: %+v", v6, last, i, r)
				}
			}
		}
	}
}

// TestASuperframeEndsAtALimitOrAnotherLength: a superframe ends at its limit of datagrams and of bytes, after a shorter datagram,
// and before a longer or empty one. It is open if the list ends first.
func TestASuperframeEndsAtALimitOrAnotherLength(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		_, headers := plain(v6, 0)
		room := ethernetLen + maxPacket - headers // for payloads
		for name, tc := range map[string]struct {
			sizes  []int
			frames int
			open   bool
		}{
			"one":                   {sizes: []int{10}, frames: 1, open: true},
			"nothing in one":        {sizes: []int{0}, frames: 1},
			"nothing in it":         {sizes: []int{0, 0}, frames: 1},
			"the next has nothing":  {sizes: []int{10, 0}, frames: 1},
			"a shorter":             {sizes: []int{10, 9, 9}, frames: 2},
			"a longer":              {sizes: []int{10, 11}, frames: 1},
			"as many as may be":     {sizes: []int{1, 1, 1, 1}, frames: 4},
			"one more":              {sizes: []int{1, 1, 1, 1, 1}, frames: 4},
			"as much as may be":     {sizes: []int{room - room/2, room / 2}, frames: 2},
			"a byte more":           {sizes: []int{room - room/2, room/2 + 1}, frames: 1},
			"as much with the next": {sizes: []int{room / 3, room / 3}, frames: 2, open: true},
			"a byte more with it":   {sizes: []int{room/3 + 1, room/3 + 1}, frames: 2},
		} {
			var list [][]byte
			for _, n := range tc.sizes {
				f, _ := plain(v6, n)
				list = append(list, f)
			}
			if r := runOf(list, 4); r.frames != tc.frames || r.open != tc.open {
				t.Errorf("IPv6 %t, %s: %+v, want %d, open %t", v6, name, r, tc.frames, tc.open)
			}
		}
	}
}

// TestNoRunOfShortFrames: a frame that is too short for its headers and a payload joins no
// superframe.
func TestNoRunOfShortFrames(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		whole, headers := plain(v6, 1)
		for n := range headers + 1 {
			f := slices.Clone(whole[:n:n])
			if ip := n - ethernetLen; !v6 && ip >= ipv4Len {
				binary.BigEndian.PutUint16(f[ethernetLen+2:], uint16(ip))
			} else if v6 && ip >= ipv6Len {
				binary.BigEndian.PutUint16(f[ethernetLen+4:], uint16(ip-ipv6Len))
			}
			for i, list := range [][][]byte{{f}, {whole, f}, {f, whole}} {
				if r := runOf(list, 64); r.frames != 1 || i == 0 && (r.open || r.headers != 0) {
					t.Errorf("IPv6 %t, %d bytes, list %d: %+v", v6, n, i, r)
				}
			}
		}
	}
}

// TestIPv4ChecksumsAreValidForAnyContents: the IPv4 header checksums of a superframe, and of the frames cut from it,
// are valid for any contents (RFC 1071).
func TestIPv4ChecksumsAreValidForAnyContents(t *testing.T) {
	first, headers := plain(false, 10)
	first[ethernetLen+8] = 255
	whole := make([]byte, headers+20)
	cut, vnet := slices.Clone(whole), make([]byte, vnetHeaderLen)
	for id := range 1 << 16 {
		binary.BigEndian.PutUint16(first[ethernetLen+4:], uint16(id))
		putHeaders(vnet, whole[:headers], first, len(whole), headers)
		if n := Cut(cut, whole, 10, 1); n != len(first) {
			t.Fatalf("a frame of %d bytes", n)
		}
		if n := Cut(cut, whole, 10, 2); n != 0 {
			t.Fatalf("%d bytes behind the last", n)
		}
		for i, f := range [][]byte{whole, cut} {
			if ip := f[ethernetLen : ethernetLen+ipv4Len]; checksum.Sum(ip)%0xffff != 0 {
				t.Fatalf("frame %d: % x", i, ip)
			}
		}
	}
}
