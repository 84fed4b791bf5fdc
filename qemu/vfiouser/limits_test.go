package vfiouser

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// TestAccessesAtTheEnd: an access may end where its region ends, and one of no bytes may be there.
func TestAccessesAtTheEnd(t *testing.T) {
	c, _ := dial(t, newFake(t))
	for _, tt := range []struct {
		off uint64
		n   int
		ok  bool
	}{
		{0, 4096, true},
		{0, 4097, false},
		{4092, 4, true},
		{4093, 4, false},
		{4095, 1, true},
		{4096, 0, true},
		{4096, 1, false},
		{4097, 0, false},
		{1<<64 - 1, 0, false},
	} {
		for _, write := range []bool{false, true} {
			err := c.Read(0, tt.off, make([]byte, tt.n))
			if write {
				err = c.Write(0, tt.off, make([]byte, tt.n), false)
			}
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%d bytes at %d, write %t: %v", tt.n, tt.off, write, err)
			}
		}
	}
}

// TestRoomForAnswers: an answer is cut to what the client has room for, which is its fixed part at
// least.
func TestRoomForAnswers(t *testing.T) {
	body := []byte("head and tail")
	for argsz, want := range map[uint32]string{
		0: "", 3: "", 4: "head", 8: "head and", 13: "head and tail", 14: "head and tail",
		1<<32 - 1: "head and tail",
	} {
		if got, err := fits(body, 4, argsz); string(got) != want || (err != nil) != (want == "") {
			t.Errorf("room for %d: %q, %v", argsz, got, err)
		}
	}
}

// told is a Device that counts what it is told to unmap.
type told struct {
	Device
	unmapped []Range
}

func (d *told) Unmap(r Range)      { d.unmapped = append(d.unmapped, r) }
func (d *told) Map(Map, int) error { return nil }

// TestUnmapOfNothing: a device does not hear of addresses that are taken back where nothing was
// mapped: what it does then may wait for others.
func TestUnmapOfNothing(t *testing.T) {
	d := &told{}
	s := &server{dev: d}
	unmap := func(u Unmap) {
		t.Helper()
		if _, err := s.unmapDMA(&message{body: u.Append(nil)}); err != nil {
			t.Error(err)
		}
	}
	some := Unmap{Range: Range{0x1000, 0x1000}}
	unmap(some)
	unmap(Unmap{Flags: UnmapAll})
	if len(d.unmapped) != 0 {
		t.Errorf("told of %v", d.unmapped)
	}
	m := Map{Range: Range{0x1000, 0x1000}}
	for _, u := range []Unmap{some, {Flags: UnmapAll}} {
		if err := s.mapDMA(&message{body: m.Append(nil)}); err != nil {
			t.Fatal(err)
		}
		unmap(u)
		unmap(u)
	}
	if want := []Range{some.Range, everything}; !slices.Equal(d.unmapped, want) {
		t.Errorf("told of %v, want %v", d.unmapped, want)
	}
}

// TestMessageInPieces: what a socket does not take of a message at once goes behind.
func TestMessageInPieces(t *testing.T) {
	near, far := sockettest.Pair(t)
	if err := near.SetWriteBuffer(1); err != nil { // the kernel has a least size
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, MaxTransfer/8)
	sent := make(chan error, 1)
	go func() {
		sent <- writeMessage(near, Header{Command: RegionRead}, body)
		near.Close()
	}()
	for waiting := 0; waiting == 0; runtime.Gosched() { // until it has taken what it takes
		raw, err := far.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := readMessage(far, make([]byte, maxMessage))
	if err != nil || !bytes.Equal(m.body, body) {
		t.Errorf("%d bytes, %v", len(m.body), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// answering is a server that greets, and then answers as it is told.
func answering(t *testing.T, greeting Greeting, answer func(h *Header, body []byte) []byte) *net.UnixConn {
	t.Helper()
	near, far := sockettest.Pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, maxMessage)
		for {
			m, err := readMessage(far, buf)
			if err != nil {
				return
			}
			m.close()
			h := Header{ID: m.ID, Command: m.Command, Flags: FlagReply}
			body := greeting.Append(nil)
			if m.Command != Version {
				body = answer(&h, bytes.Clone(m.body))
			}
			if writeMessage(far, h, body) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { near.Close(); <-done })
	return near
}

// TestAnswersOfOthers: an answer that is not to what was asked, or is no answer, is an error, as is
// one of another length.
func TestAnswersOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(h *Header, body []byte) []byte
		says   string // "": no error
	}{
		"right":      {func(_ *Header, body []byte) []byte { return append(body, 1, 2, 3, 4) }, ""},
		"another id": {func(h *Header, body []byte) []byte { h.ID++; return append(body, 1, 2, 3, 4) }, "another message"},
		"another command": {
			func(h *Header, body []byte) []byte { h.Command = RegionWrite; return append(body, 1, 2, 3, 4) }, "another message",
		},
		"a question": {func(h *Header, body []byte) []byte { h.Flags = 0; return append(body, 1, 2, 3, 4) }, "another message"},
		"an errno": {func(h *Header, _ []byte) []byte {
			h.Flags, h.Errno = FlagReply|FlagError, uint32(unix.ENOSPC)
			return nil
		}, unix.ENOSPC.Error()},
		"too short": {func(_ *Header, body []byte) []byte { return append(body, 1, 2, 3) }, "3 bytes came, 4 were asked"},
		"too long":  {func(_ *Header, body []byte) []byte { return append(body, 1, 2, 3, 4, 5) }, "5 bytes came, 4 were asked"},
		"half":      {func(_ *Header, body []byte) []byte { return body[:8] }, "0 bytes came, 4 were asked"},
	} {
		c, err := NewClient(answering(t, Greeting{}, tt.answer), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.Read32(0, 8)
		if tt.says == "" && (err != nil || v != 0x04030201) || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %#x, %v", name, v, err)
		}
	}
}

// TestServersThatAreNewer: a server of a later version is refused; one of this version need not
// answer within any time if none is given.
func TestServersThatAreNewer(t *testing.T) {
	for _, tt := range []struct {
		g  Greeting
		ok bool
	}{{Greeting{}, true}, {Greeting{Minor: 1}, false}, {Greeting{Major: 1}, false}} {
		c, err := NewClient(answering(t, tt.g, func(_ *Header, body []byte) []byte { return body }), 0)
		if (err == nil) != tt.ok {
			t.Errorf("version %d.%d: %v", tt.g.Major, tt.g.Minor, err)
		}
		if err == nil {
			if err := c.Reset(); err != nil {
				t.Error(err)
			}
		}
	}
}

// many is a Device with so many vectors, which notes those that were set.
type many struct {
	*fake
	n    uint32
	sets []int // first vector and number, of each time
}

func (d *many) Vectors(uint32) uint32 { return d.n }

func (d *many) SetIRQs(_, start uint32, fds []int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sets = append(d.sets, int(start), len(fds))
	for _, fd := range fds {
		if fd != NoFile {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// TestManyVectors: descriptors that one message cannot bring come with several.
func TestManyVectors(t *testing.T) {
	for n, want := range map[int][]int{
		1:            {1, 1},
		MaxFDs:       {1, MaxFDs},
		MaxFDs + 1:   {1, MaxFDs, 1 + MaxFDs, 1},
		2 * MaxFDs:   {1, MaxFDs, 1 + MaxFDs, MaxFDs},
		2*MaxFDs + 3: {1, MaxFDs, 1 + MaxFDs, MaxFDs, 1 + 2*MaxFDs, 3},
	} {
		dev := &many{fake: newFake(t), n: uint32(n) + 1}
		c, _ := dial(t, dev)
		fd := memfd(t, 1)
		if err := c.SetIRQs(IRQMSIX, 1, uint32(n), slices.Repeat([]int{fd}, n)...); err != nil {
			t.Errorf("%d vectors: %v", n, err)
		}
		_ = unix.Close(fd)
		dev.mu.Lock()
		if !slices.Equal(dev.sets, want) {
			t.Errorf("%d vectors: set %v, want %v", n, dev.sets, want)
		}
		dev.mu.Unlock()
	}
}
