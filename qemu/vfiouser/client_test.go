package vfiouser

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

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

// TestReplyToAnotherMessageIsRefused: a reply to another message, a message that is no reply, and a
// reply of another length are errors.
func TestReplyToAnotherMessageIsRefused(t *testing.T) {
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

// TestNewerServersAreRefused: a server of a later version is refused; one of this version need not
// answer within any time if none is given.
func TestNewerServersAreRefused(t *testing.T) {
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
