package tap_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/allocs"
)

// datagram makes an Ethernet frame with a UDP datagram of payload bytes, over IPv4 or IPv6, without
// a UDP checksum.
func datagram(v6 bool, srcPort uint16, payload int, seq byte) []byte {
	src, dst, hlen := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2"), 20
	if v6 {
		src, dst, hlen = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 40
	}
	f := make([]byte, 14+hlen+8+payload)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	ip, udp := f[14:14+hlen], f[14+hlen:]
	if v6 {
		binary.BigEndian.PutUint16(f[12:], 0x86DD)
		ip[0], ip[6], ip[7] = 0x60, 17, 255
		binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
	} else {
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		ip[0], ip[8], ip[9], ip[6] = 0x45, 255, 17, 0x40
		binary.BigEndian.PutUint16(ip[2:], uint16(hlen+len(udp)))
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^onesSum(ip))
	}
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], 1000)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	for i := range udp[8:] {
		udp[8+i] = byte(i)*7 ^ seq
	}
	return f
}

func onesSum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// arrived reads frames until n datagrams came, and returns their payloads and the number of frames.
// Every header must be well formed, including complete checksums.
func arrived(t *testing.T, p tap.Uplink, n int) (payloads [][]byte, frames int) {
	t.Helper()
	bufs, got := [][]byte{make([]byte, tap.BufferSize(p))}, make([]tap.Received, 1)
	for len(payloads) < n {
		wait(t, p)
		k, err := p.Read(bufs, got)
		must(t, err)
		if k == 0 {
			t.Fatalf("a frame was refused: %+v", p.Stats())
		}
		f := bufs[0][:got[0].Len]
		headers := 42
		if f[12] == 0x86 {
			headers = 62
		} else if onesSum(f[14:34]) != 0xffff {
			t.Errorf("IPv4 checksum of % x", f[14:34])
		}
		segment, body := got[0].Segment, f[headers:]
		if check := binary.BigEndian.Uint16(f[headers-2:]); segment != 0 || check != 0 { // else it was sent alone
			udp := f[headers-8:]
			pseudo := binary.BigEndian.AppendUint16([]byte{0, 17}, uint16(len(udp)))
			if headers == 42 {
				pseudo = append(pseudo, f[26:34]...)
			} else {
				pseudo = append(pseudo, f[22:54]...)
			}
			if segment != 0 && check != onesSum(pseudo) {
				t.Errorf("UDP checksum %#x to begin with, want %#x", check, onesSum(pseudo))
			}
			if all := append(append(pseudo, udp...), 0); segment == 0 && onesSum(all) != 0xffff {
				t.Errorf("UDP checksum %#x", check)
			}
		}
		if udpLen := int(binary.BigEndian.Uint16(f[headers-4:])); udpLen != len(body)+8 {
			t.Errorf("UDP length %d for %d bytes", udpLen, len(body))
		}
		frames++
		if segment == 0 {
			segment = len(body)
		}
		for len(body) > 0 {
			cut := min(segment, len(body))
			payloads, body = append(payloads, bytes.Clone(body[:cut])), body[cut:]
		}
	}
	return payloads, frames
}

// Runs of datagrams pass as superframes if both sides support them, and one by one if the reader does
// not. In both cases every byte arrives, in order within its flow.
func TestEveryByteOfASuperframeArrivesInOrder(t *testing.T) {
	requireTUN(t)
	for name, tc := range map[string]struct {
		sizes  []int
		ports  []uint16 // source port of each datagram; nil: one
		v6     bool
		frames int // to a reader with superframes
	}{
		"one":                    {sizes: []int{100}, frames: 1},
		"two":                    {sizes: []int{100, 100}, frames: 1},
		"shorter last":           {sizes: []int{1400, 1400, 17}, frames: 1},
		"shorter in the middle":  {sizes: []int{1400, 17, 1400}, frames: 2},
		"longer at the end":      {sizes: []int{100, 100, 101}, frames: 2},
		"sixty-four thousand":    {sizes: equal(4200, 16), frames: 2},
		"all that one can have":  {sizes: equal(100, 128), frames: 1},
		"one more":               {sizes: equal(100, 129), frames: 2},
		"two flows":              {sizes: equal(100, 4), ports: []uint16{1, 1, 2, 2}, frames: 2},
		"flows in turn":          {sizes: equal(100, 4), ports: []uint16{1, 2, 1, 2}, frames: 4},
		"IPv6":                   {sizes: equal(1400, 20), v6: true, frames: 1},
		"IPv6, shorter last":     {sizes: []int{1400, 1400, 1}, v6: true, frames: 1},
		"IPv6, more than 64 KiB": {sizes: equal(4000, 17), v6: true, frames: 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, reader := range []string{superframes, tap.BackendNative, tap.BackendWater} {
				netns.Run(t, func() {
					must(t, tap.NewBridge("br0", 5000))
					a := open(t, tap.Config{Name: "up1", MTU: 5000, Bridge: "br0", Backend: superframes})
					b := open(t, tap.Config{Name: "up2", MTU: 5000, Bridge: "br0", Backend: reader})
					defer func() { must(t, a.Close()); must(t, b.Close()) }()
					needUSO(t, a)
					var out [][]byte
					size := 0
					for i, n := range tc.sizes {
						port := uint16(0xC000)
						if tc.ports != nil {
							port += tc.ports[i]
						}
						out = append(out, datagram(tc.v6, port, n, byte(i)))
						size += len(out[i])
					}
					if n, err := a.Write(out, false); n != len(out) || err != nil {
						t.Fatalf("%d of %d written: %v", n, len(out), err)
					}
					payloads, frames := arrived(t, b, len(out))
					for i, f := range out {
						if got := payloads[i]; !bytes.Equal(got, f[len(f)-tc.sizes[i]:]) {
							t.Fatalf("%s: datagram %d: %d bytes came, %d sent", reader, i, len(got), tc.sizes[i])
						}
					}
					want := tc.frames
					if reader != superframes {
						want = len(out)
					}
					if frames != want && a.Capabilities().MaxSegments == 128 {
						t.Errorf("%s: %d frames came, want %d", reader, frames, want)
					}
					if s := a.Stats(); s.TxFrames != uint64(len(out)) || s.TxBytes != uint64(size) || s.TxDropped != 0 {
						t.Errorf("%s: sent %+v", reader, s)
					}
					if s := b.Stats(); s.RxFrames != uint64(len(out)) || s.RxBytes != uint64(size) || s.RxDropped != 0 {
						t.Errorf("%s: received %+v, %d bytes sent", reader, s, size)
					}
				})
			}
		})
	}
}

// If more is to come, a superframe that may grow stays with the caller; any other is sent.
func TestAGrowingSuperframeStaysWithTheCaller(t *testing.T) {
	requireTUN(t)
	for name, tc := range map[string]struct {
		sizes []int
		ports []uint16
		taken int // with more to come
		super uint64
	}{
		"one":                 {sizes: []int{100}},
		"some":                {sizes: equal(1472, 43)},
		"64 KiB":              {sizes: equal(1472, 44), taken: 44, super: 1},
		"and some":            {sizes: equal(1472, 47), taken: 44, super: 1},
		"all it can have":     {sizes: equal(100, 128), taken: 128, super: 1},
		"closed by a shorter": {sizes: append(equal(1472, 5), 60), taken: 6, super: 1},
		"another flow":        {sizes: equal(1472, 6), ports: []uint16{1, 1, 1, 2, 2, 2}, taken: 3, super: 1},
	} {
		t.Run(name, func(t *testing.T) {
			netns.Run(t, func() {
				p := open(t, tap.Config{Name: "up1", MTU: 1500, Backend: superframes})
				defer func() { must(t, p.Close()) }()
				needUSO(t, p)
				if c := p.Capabilities(); c.MaxSegments < 128 && name == "all it can have" {
					t.Skip("this kernel takes 64")
				}
				var out [][]byte
				for i, n := range tc.sizes {
					port := uint16(0xC000)
					if tc.ports != nil {
						port += tc.ports[i]
					}
					out = append(out, datagram(false, port, n, byte(i)))
				}
				n, err := p.Write(out, true)
				if s := p.Stats(); n != tc.taken || err != nil || s.TxFrames != uint64(n) || s.TxSuperframes != tc.super {
					t.Errorf("%d taken, %v, %+v", n, err, s)
				}
				if n, err := p.Write(out[n:], false); n != len(out)-tc.taken || err != nil {
					t.Errorf("%d of the rest taken, %v", n, err)
				}
			})
		})
	}
}

func equal(size, n int) (sizes []int) {
	for range n {
		sizes = append(sizes, size)
	}
	return sizes
}

func needUSO(t testing.TB, p tap.Uplink) {
	t.Helper()
	if !p.Capabilities().USO {
		t.Skip("this kernel has no UDP segmentation offload for TAPs (Linux 6.2)")
	}
}

// The limit found by probing is the kernel's: that many datagrams pass in one write. A device that
// was up is not probed.
func TestTheProbedLimitIsTheKernels(t *testing.T) {
	requireTUN(t)
	netns.Run(t, func() {
		p := open(t, tap.Config{Name: "up1", Backend: superframes})
		needUSO(t, p)
		if s := p.Stats(); s.TxFrames != 0 {
			t.Errorf("%+v", s)
		}
		if c := p.Capabilities(); c.MaxSegments != 64 && c.MaxSegments != 128 {
			t.Errorf("%+v", c)
		}
		link, err := netlink.LinkByName("up1")
		must(t, err)
		if st := link.Attrs().Statistics; st.RxPackets != 0 {
			t.Errorf("the probe was received: %+v", st)
		}
		must(t, p.Close())

		persistent(t, "tap9", netlink.TUNTAP_MODE_TAP, netlink.TUNTAP_NO_PI|netlink.TUNTAP_VNET_HDR)
		link, err = netlink.LinkByName("tap9")
		must(t, err)
		must(t, netlink.LinkSetUp(link))
		p = open(t, tap.Config{Name: "tap9", Adopt: true, Backend: superframes})
		if c := p.Capabilities(); !c.USO || c.MaxSegments != 64 {
			t.Errorf("adopted while up: %+v", c)
		}
		must(t, p.Close())
		p = open(t, tap.Config{Name: "tap9", Adopt: true}) // gives the offloads up again
		if c := p.Capabilities(); c.USO || c.MaxSegments != 1 {
			t.Errorf("without superframes: %+v", c)
		}
		must(t, p.Close())
	})
}

func TestSuperframesNoAllocations(t *testing.T) {
	requireTUN(t)
	netns.Run(t, func() {
		a, b, done := pair(t, superframes, 9000)
		defer done()
		needUSO(t, a)
		var out [][]byte
		for i := range 15 {
			out = append(out, datagram(false, 0xC000, 4200, byte(i)))
		}
		bufs, got := [][]byte{make([]byte, tap.BufferSize(b))}, make([]tap.Received, 1)
		if n := allocs.PerRun(50, func() {
			if n, err := a.Write(out, false); n != len(out) || err != nil {
				t.Fatal(n, err)
			}
			for n := 0; n == 0; {
				var err error
				if n, err = b.Read(bufs, got); err != nil {
					t.Fatal(err)
				}
			}
		}); n != 0 {
			t.Fatalf("%v allocations", n)
		}
		if s := b.Stats(); s.RxSuperframes == 0 || s.RxFrames != 15*s.RxSuperframes {
			t.Errorf("%+v", s)
		}
	})
}

// The frames cut from a superframe are those it was made of.
func TestCutGivesBackTheOriginalFrames(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		const segment, last = 1000, 10
		var want [][]byte
		for i := range 4 {
			want = append(want, datagram(v6, 0xC000, segment, byte(i)))
		}
		want = append(want, datagram(v6, 0xC000, last, 9))
		headers := len(want[0]) - segment
		super := datagram(v6, 0xC000, 4*segment+last, 0)
		super[headers-2] = 0xAB // the kernel leaves a partial checksum
		for i, f := range want {
			copy(super[headers+i*segment:], f[headers:])
		}
		dst := make([]byte, 2000)
		for i, f := range want {
			if n := tap.Cut(dst, super, segment, i); !bytes.Equal(dst[:n], f) {
				t.Errorf("IPv6 %v, frame %d: %x\nwant %x", v6, i, dst[:min(n, 80)], f[:min(len(f), 80)])
			}
		}
		if n := tap.Cut(dst, super, segment, len(want)); n != 0 {
			t.Errorf("a frame of %d bytes behind the last", n)
		}
	}
}
