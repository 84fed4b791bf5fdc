package vhostuser

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// TestRegionIsRemovedByItsWholeName: a region is removed only if all fields that name it match; its
// offset in its file does not matter.
func TestRegionIsRemovedByItsWholeName(t *testing.T) {
	a, b := Region{GPA: 0x1000, Size: 0x1000, User: 0x7000, Offset: 0x3000}, Region{GPA: 0x8000, Size: 0x1000, User: 0x9000}
	s := &State{Regions: []Region{a, b}}
	edit := func(r Region, f func(*Region)) Region { f(&r); return r }
	for i, c := range []struct {
		r    Region
		want int
	}{
		{a, 0},
		{b, 1},
		{edit(a, func(r *Region) { r.Offset = 0 }), 0},
		{edit(a, func(r *Region) { r.GPA++ }), -1},
		{edit(a, func(r *Region) { r.Size-- }), -1},
		{edit(a, func(r *Region) { r.User = b.User }), -1},
		{edit(b, func(r *Region) { r.GPA = a.GPA }), -1},
	} {
		if got := s.findRegion(c.r); got != c.want {
			t.Errorf("%d: region %d, want %d", i, got, c.want)
		}
	}
}

// plain is a Device that can do nothing; taker also takes an MTU.
type plain struct{ Device }

type taker struct {
	Device
	mtu uint64
}

func (t *taker) SetMTU(mtu uint64) error { t.mtu = mtu; return nil }

// TestMTUIsTaken: an MTU is refused if the device takes none, or has not offered that feature.
func TestMTUIsTaken(t *testing.T) {
	for _, c := range []struct {
		dev      Device
		protocol uint64
		payload  []byte
		ok       bool
	}{
		{&taker{}, ProtocolNetMTU, u64(1500), true},
		{&taker{}, ProtocolNetMTU, []byte{1}, false},
		{&taker{}, 0, u64(1500), false},
		{plain{}, ProtocolNetMTU, u64(1500), false},
		{plain{}, 0, u64(1500), false},
	} {
		conv := &Session{dev: c.dev, layout: Layout{Protocol: c.protocol}}
		err := conv.setMTU(&Message{Payload: c.payload})
		if (err == nil) != c.ok || c.ok && c.dev.(*taker).mtu != 1500 {
			t.Errorf("%T, protocol %#x: %v", c.dev, c.protocol, err)
		}
		if len(c.payload) == 8 && !c.ok && !errors.Is(err, errRefused) {
			t.Errorf("%T: %v, want it refused", c.dev, err)
		}
	}
}

// TestPackedRingsHaveABaseOfTheirOwn: User Mode Linux, which does not negotiate the protocol
// feature, gives a packed ring the base 0 at its start. From other front ends 0 is a position with
// the wrap counter 0.
func TestPackedRingsHaveABaseOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		features  uint64
		num, want uint32
	}{
		{FeaturePacked, 0, 0x80008000},
		{FeaturePacked, 0x80018001, 0x80018001},
		{FeaturePacked | FeatureProtocol, 0, 0},
		{0, 0, 0},
	} {
		conv := &Session{dev: plain{}, State: State{Features: c.features, Vrings: make([]Vring, 1)}, layout: Layout{Rings: 1}}
		if err := conv.setVringState(&Message{Header: Header{Request: SetVringBase}, Payload: VringState{Num: c.num}.Append(nil)}); err != nil {
			t.Error(err)
		}
		if got := conv.State.Vrings[0].Base; got != c.want {
			t.Errorf("features %#x, base %#x: %#x, want %#x", c.features, c.num, got, c.want)
		}
	}
}

// TestBackendSocketStaysOpen: the channel for requests is kept until the session ends or gets
// another one, because its sender takes its end for the end of the session. A descriptor that
// is no socket is refused.
func TestBackendSocketStaysOpen(t *testing.T) {
	conv := &Session{dev: &idle{}, back: -1, layout: Layout{Protocol: ProtocolBackendReq}}
	pass := func() (far int, err error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fds[0]) })
		m := &Message{}
		defer m.Close()
		m.giveBack(fds[1])
		return fds[0], conv.setBackendReqFD(m)
	}
	open := func(far int) bool {
		p := []unix.PollFd{{Fd: int32(far), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n == 0
	}
	first, err1 := pass()
	if err1 != nil || !open(first) {
		t.Errorf("the first channel: %v, open %t", err1, open(first))
	}
	second, err2 := pass()
	if err2 != nil || open(first) || !open(second) {
		t.Errorf("the second channel: %v, open %t and %t", err2, open(first), open(second))
	}
	if err := conv.setBackendReqFD(&Message{}); err == nil {
		t.Error("nothing was taken for a channel")
	}
	conv.teardown()
	if open(second) {
		t.Error("the channel is open after the end")
	}
	conv.layout.Protocol = 0
	if _, err := pass(); !errors.Is(err, errRefused) {
		t.Errorf("%v, want it refused", err)
	}
}

// idle is a Device that is told of its end.
type idle struct {
	Device
	maps []*Mapping
}

func (d *idle) SetMemory(_ *State, maps []*Mapping) error { d.maps = maps; return nil }
func (d *idle) StopVring(int) uint32                      { return 0 }

// TestLeavingFrontEndLeavesNothing: when a session ends it removes the memory and keeps no
// descriptor, so that none is closed twice.
func TestLeavingFrontEndLeavesNothing(t *testing.T) {
	dev := &idle{maps: []*Mapping{{}}}
	c := &Session{dev: dev, layout: VsockLayout, State: State{Vrings: make([]Vring, VsockLayout.Rings)}, maps: dev.maps, back: -1}
	for range VsockLayout.Rings {
		c.fds = append(c.fds, ringFDs{-1, -1, -1})
	}
	c.teardown()
	if dev.maps != nil || c.maps != nil {
		t.Error("memory is left")
	}
	for i, f := range c.fds {
		if f != (ringFDs{-1, -1, -1}) {
			t.Errorf("ring %d has %+v", i, f)
		}
	}
}

// TestRegionsComeWithTheirDescriptors: a table has as many regions as descriptors fit, and all that
// it claims; one region more is a message of its own length.
func TestRegionsComeWithTheirDescriptors(t *testing.T) {
	regions := func(n int) (list []Region) {
		for i := range n {
			list = append(list, Region{GPA: uint64(i) << 20, Size: 1 << 20, User: uint64(i) << 30, Offset: uint64(i)})
		}
		return list
	}
	for n := range maxFDs + 3 {
		b := AppendMemTable(nil, regions(n))
		if rs, err := ParseMemTable(b); (err == nil) != (n <= maxFDs) || err == nil && !slices.Equal(rs, regions(n)) {
			t.Errorf("%d regions: %v, %v", n, rs, err)
		}
		if _, err := ParseMemTable(b[:len(b)-1]); err == nil {
			t.Errorf("%d regions, the last byte is missing: accepted", n)
		}
		if _, err := ParseMemTable(append(b, 1)); (err == nil) != (n <= maxFDs) {
			t.Errorf("%d regions with something behind: %v", n, err)
		}
	}
	r := regions(3)[2]
	b := r.Append(make([]byte, 8))
	for n := range len(b) + 1 {
		got, err := parseSlot(&Message{Payload: b[:n]})
		if (err == nil) != (n == len(b)) || err == nil && got != r || err != nil && !strings.Contains(err.Error(), "want 40") {
			t.Errorf("%d bytes: %+v, %v", n, got, err)
		}
	}
}

// TestImpossibleRegionsAreRefused: a region must not be empty, must fit into both address spaces
// and into its file, and must not overlap another region.
func TestImpossibleRegionsAreRefused(t *testing.T) {
	s := State{Regions: []Region{{GPA: 0x10000, Size: 0x10000}, {GPA: 0x40000, Size: 0x1000}}}
	for _, c := range []struct {
		r  Region
		ok bool
	}{
		{Region{GPA: 0, Size: 0}, false},
		{Region{GPA: 0, Size: 1}, true},
		{Region{GPA: 0, Size: 0x10000}, true},
		{Region{GPA: 0, Size: 0x10001}, false},
		{Region{GPA: 0x10000, Size: 1}, false},
		{Region{GPA: 0x1ffff, Size: 1}, false},
		{Region{GPA: 0x20000, Size: 0x20000}, true},
		{Region{GPA: 0x20000, Size: 0x20001}, false},
		{Region{GPA: 0, Size: 0x80000}, false},
		{Region{GPA: 0x18000, Size: 0x1000}, false},
		{Region{GPA: 0x41000, Size: math.MaxInt64}, true},
		{Region{GPA: 0x41000, Size: math.MaxInt64 + 1}, false},
		{Region{GPA: 0x41000, Size: 0x1000, Offset: math.MaxInt64 - 0x1000}, true},
		{Region{GPA: 0x41000, Size: 0x1000, Offset: math.MaxInt64 - 0xfff}, false},
		{Region{GPA: math.MaxUint64 - 0x1000, Size: 0x1000}, true},
		{Region{GPA: math.MaxUint64 - 0xfff, Size: 0x1000}, false},
		{Region{GPA: 0x41000, Size: 0x1000, User: math.MaxUint64 - 0x1000}, true},
		{Region{GPA: 0x41000, Size: 0x1000, User: math.MaxUint64 - 0xfff}, false},
	} {
		if err := s.checkRegion(c.r); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
}

// space is a Device with a configuration space of eight bytes.
type space struct{ Device }

func (space) Config(off uint32, b []byte) bool {
	all := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	return int(off)+len(b) <= len(all) && copy(b, all[off:]) == len(b)
}

// TestConfigurationIsReadInItsBounds: a request must have room for all bytes that it asks for; the
// answer has as many, or none.
func TestConfigurationIsReadInItsBounds(t *testing.T) {
	for _, c := range []struct {
		off, size byte
		payload   int // bytes
		want      int // of the answer; -1: an error
	}{
		{0, 0, 11, -1},
		{0, 0, 12, 12},
		{0, 8, 20, 20},
		{0, 8, 21, 20},
		{0, 8, 19, -1},
		{0, 9, 20, -1},
		{3, 5, 17, 17},
		{3, 6, 18, 0},
		{8, 0, 12, 12},
		{8, 1, 13, 0},
	} {
		payload := make([]byte, c.payload, 64)
		payload[0], payload[4] = c.off, c.size
		conv := &Session{dev: space{}}
		reply, err := conv.getConfig(&Message{Payload: payload})
		if (err == nil) != (c.want >= 0) || err == nil && (len(reply) != c.want || reply == nil) {
			t.Errorf("%+v: % x, %v", c, reply, err)
		}
		if err == nil && c.want > 12 && (reply[0] != c.off || reply[12] != c.off+1 || reply[len(reply)-1] != c.off+c.size) {
			t.Errorf("%+v: % x", c, reply)
		}
	}
}

// TestBaseIsThatOfTheRingAskedFor: the position of a ring is taken only from the answer about that
// ring.
func TestBaseIsThatOfTheRingAskedFor(t *testing.T) {
	for _, c := range []struct {
		payload []byte
		ok      bool
	}{
		{VringState{Index: 1, Num: 7}.Append(nil), true},
		{VringState{Index: 0, Num: 7}.Append(nil), false},
		{VringState{Index: 1, Num: 7}.Append(nil)[:7], false},
	} {
		near, far := sockettest.Pair(t)
		if err := WriteMessage(far, GetVringBase, FlagReply, c.payload); err != nil {
			t.Fatal(err)
		}
		f := frontend{conn: near, limit: time.Minute}
		if base, err := f.stop(1); (err == nil) != c.ok || c.ok && base != 7 {
			t.Errorf("% x: base %d, %v", c.payload, base, err)
		}
	}
}
