package vhostuser

import (
	"bytes"
	"errors"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// TestOnlyThisVersionsMessagesAreRead: messages that this version of the protocol cannot have are
// refused.
func TestOnlyThisVersionsMessagesAreRead(t *testing.T) {
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

// TestMessagesMayGoInPieces: bytes of a message that the socket does not take at once are sent
// afterwards.
func TestMessagesMayGoInPieces(t *testing.T) {
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
