package vhostuser

import (
	"bytes"
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// TestRegionsThatAreRefused: a region has bytes, all of them have addresses on both sides and a
// place in a file, and none is another region's.
func TestRegionsThatAreRefused(t *testing.T) {
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

// TestHeaders: of messages only those are read that this version of the protocol can have.
func TestHeaders(t *testing.T) {
	good := Header{Request: SetOwner, Flags: FlagVersion | FlagNeedReply, Size: 8}
	edit := func(f func(*Header)) Header { h := good; f(&h); return h }
	for _, c := range []struct {
		h  Header
		ok bool
	}{
		{good, true},
		{edit(func(h *Header) { h.Flags = FlagVersion }), true},
		{edit(func(h *Header) { h.Flags = 0 }), false},
		{edit(func(h *Header) { h.Flags = 2 }), false},
		{edit(func(h *Header) { h.Flags = 3 }), false},
		{edit(func(h *Header) { h.Flags = math.MaxUint32 &^ 2 }), true},
		{edit(func(h *Header) { h.Request = 0 }), false},
		{edit(func(h *Header) { h.Request = 1 }), true},
		{edit(func(h *Header) { h.Request = lastRequest }), true},
		{edit(func(h *Header) { h.Request = lastRequest + 1 }), false},
		{edit(func(h *Header) { h.Size = 0 }), true},
		{edit(func(h *Header) { h.Size = maxPayload }), true},
		{edit(func(h *Header) { h.Size = maxPayload + 1 }), false},
	} {
		b := c.h.Append(nil)
		if got, err := ParseHeader(b); (err == nil) != c.ok || got != c.h {
			t.Errorf("%+v: %+v, %v", c.h, got, err)
		}
		if _, err := ParseHeader(b[:HeaderSize-1]); err == nil {
			t.Error("a header was read of too few bytes")
		}
	}
	newer := edit(func(h *Header) { h.Flags = math.MaxUint32 &^ 1 })
	if _, err := ParseHeader(newer.Append(nil)); err == nil || !strings.Contains(err.Error(), "version 2, want 1") {
		t.Errorf("another version: %v", err)
	}
	state := VringState{Index: 1, Num: 2}
	for n := range 10 {
		b := append(state.Append(nil), 0)[:n]
		if got, err := ParseVringState(b); (err == nil) != (n >= 8) || err == nil && got != state {
			t.Errorf("the state of a ring in %d bytes: %+v, %v", n, got, err)
		}
		if got, err := parseU64(b); (err == nil) != (n >= 8) || err == nil && got != 2<<32|1 {
			t.Errorf("a number in %d bytes: %#x, %v", n, got, err)
		}
	}
}

// space is a Device with a configuration space of eight bytes.
type space struct{ Device }

func (space) Config(off uint32, b []byte) bool {
	all := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	return int(off)+len(b) <= len(all) && copy(b, all[off:]) == len(b)
}

// TestConfigurationSpace: a request has room for all that it asks for; the answer has as much, or
// is empty.
func TestConfigurationSpace(t *testing.T) {
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
		conv := &Conversation{dev: space{}}
		reply, err := conv.getConfig(&Message{Payload: payload})
		if (err == nil) != (c.want >= 0) || err == nil && (len(reply) != c.want || reply == nil) {
			t.Errorf("%+v: % x, %v", c, reply, err)
		}
		if err == nil && c.want > 12 && (reply[0] != c.off || reply[12] != c.off+1 || reply[len(reply)-1] != c.off+c.size) {
			t.Errorf("%+v: % x", c, reply)
		}
	}
}

// TestStopped: where a ring stands is taken from the answer about that ring alone.
func TestStopped(t *testing.T) {
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

// TestMessageInPieces: what a socket does not take of a message at once goes behind.
func TestMessageInPieces(t *testing.T) {
	near, far := sockettest.Pair(t)
	if err := near.SetWriteBuffer(1); err != nil { // the kernel has a least size
		t.Fatal(err)
	}
	if err := WriteMessage(near, SetOwner, 0, nil); err != nil {
		t.Fatal(err)
	}
	payload := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, maxPayload/8)
	sent := make(chan error, 1)
	go func() {
		sent <- WriteMessage(near, SetConfig, 0, payload)
		near.Close()
	}()
	for waiting(t, far) <= HeaderSize { // until it has taken what it takes
		runtime.Gosched()
	}
	for _, want := range [][]byte{nil, payload} {
		m, err := ReadMessage(far)
		if err != nil || !bytes.Equal(m.Payload, want) {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// waiting is how many bytes can be read.
func waiting(t *testing.T, c *net.UnixConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { n, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRelayWithoutSpace: a device without configuration space has nothing to be read.
func TestRelayWithoutSpace(t *testing.T) {
	with := NewRelay(Relayed{Config: space{}.Config}, time.Minute, nil)
	b := make([]byte, 2)
	if !with.Config(6, b) || !bytes.Equal(b, []byte{7, 8}) || with.Config(7, b) {
		t.Errorf("% x", b)
	}
	if NewRelay(Relayed{}, time.Minute, nil).Config(0, b) {
		t.Error("a configuration space of nobody")
	}
}

// TestRelayTellsDescriptors: a worker hears of the descriptors of rings that it runs, when they
// change; of those that do not run it hears when they start.
func TestRelayTellsDescriptors(t *testing.T) {
	r := NewRelay(Relayed{Layout: VsockLayout, Features: FeatureVersion1}, time.Minute, func(err error) { t.Error(err) })
	st := &State{
		Features: FeatureVersion1, Regions: []Region{{Size: 0x10000}},
		Vrings: []Vring{{Num: 8}, {Num: 8, Desc: 0x1000, Avail: 0x2000, Used: 0x3000}},
	}
	fd := descriptor(t, 1)
	defer unix.Close(fd)
	start := func() {
		t.Helper()
		if err := r.StartVring(st, 1, fd, -1, -1); err != nil {
			t.Fatal(err)
		}
	}
	r.SetCall(1, fd, -1) // nobody listens, and nothing runs
	start()
	r.SetCall(1, fd, -1)
	r.StopVring(1)
	a := attachAsked(t, r)
	a.take()
	r.SetCall(1, fd, -1)
	if log := a.take(); len(log) != 0 {
		t.Errorf("of a ring that does not run: %q", log)
	}
	start()
	a.take()
	r.SetCall(1, fd, -1)
	if log, want := a.take(), []string{"SET_VRING_ERR 0", "SET_VRING_CALL 1"}; !slices.Equal(log, want) {
		t.Errorf("of a ring that runs: %q, want %q", log, want)
	}
}

// noted is a ledger of packed rings.
type noted map[int]uint32

func (n noted) Begin(ring int, base uint32) { n[ring] = base }
func (n noted) Base(ring int) uint32        { return n[ring] }

// TestRelayKnowsWhereRingsAre: a split ring without worker stands at its used index, where it is in
// the guest's memory now, or was when that could be told last; where nobody can read it, at its
// base. A packed one stands where its ledger says.
func TestRelayKnowsWhereRingsAre(t *testing.T) {
	ledger := noted{}
	r := NewRelay(Relayed{Layout: VsockLayout, Ledger: ledger}, time.Minute, func(err error) { t.Error(err) })
	st := func(gpa, size uint64) *State {
		return &State{
			Regions: []Region{{GPA: gpa, Size: size}},
			Vrings:  []Vring{{Num: 8, Base: 7}, {Num: 8, Base: 7, Desc: 0x1000, Avail: 0x2000, Used: 0x3000}},
		}
	}
	file := descriptorOf(t, 0x20000)
	if _, err := unix.Pwrite(file, []byte{0x34, 0x12}, 0x10000+0x3002); err != nil {
		t.Fatal(err)
	}
	at := func(gpa, size uint64) []*Mapping {
		return []*Mapping{{Region: Region{GPA: gpa, Size: size, Offset: 0x10000}, file: file}}
	}
	for i, c := range []struct {
		later *State
		maps  []*Mapping
		base  uint32
	}{
		{nil, nil, 7},
		{st(0x200000, 0x10000), at(0x200000, 0x10000), 0x1234},
		{st(0x300000, 0x1000), at(0x100000, 0x10000), 0x1234},
		{st(0x200000, 0x10000), at(0x100000, 0x10000), 7},
	} {
		if err := r.StartVring(st(0x100000, 0x10000), 1, -1, -1, -1); err != nil {
			t.Fatal(err)
		}
		if c.later != nil {
			if err := r.SetMemory(c.later, c.maps); err != nil {
				t.Fatal(err)
			}
		}
		if base := r.StopVring(1); base != c.base {
			t.Errorf("%d: base %#x, want %#x", i, base, c.base)
		}
	}
	if err := r.StartVring(st(0x100000, 0x2000), 1, -1, -1, -1); err == nil {
		t.Error("a ring outside memory was started")
	}
	packed := st(0x100000, 0x10000)
	packed.Features, packed.Vrings[1].Base = FeaturePacked, 0x80028002
	if err := r.StartVring(packed, 1, -1, -1, -1); err != nil {
		t.Fatal(err)
	}
	ledger[1] += 0x30003 // by a worker that is gone
	if base := r.StopVring(1); base != 0x80058005 {
		t.Errorf("a packed ring: base %#x", base)
	}
}

// descriptorOf is memory of a guest's.
func descriptorOf(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}
