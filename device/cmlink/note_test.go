package cmlink

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// await polls a condition that must come true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestNotesTellWhyAPeerIsMissing: the log and Note report a peer that is waited for or cannot be reached, and two NICs
// with one host number that take the link from each other.
func TestNotesTellWhyAPeerIsMissing(t *testing.T) {
	var log syncBuffer
	b, rb := accepting(t, func(c *Config) {
		c.Log, c.Patience = slog.New(slog.NewTextHandler(&log, nil)), time.Millisecond
	})
	await(t, "no word of waiting", func() bool {
		return strings.Contains(b.Note(1), "waits for it to dial "+b.Addr().String()) && strings.Contains(log.String(), "the peer does not dial")
	})
	var lostLog syncBuffer
	lost, _ := dialing(t, "127.0.0.1:1", func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&lostLog, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	await(t, "no word of a peer that is not there", func() bool {
		return strings.Contains(lost.Note(2), "not reached: dial tcp 127.0.0.1:1") && strings.Count(lostLog.String(), "trying again") >= 3
	})
	if text := lostLog.String(); strings.Count(text, "level=WARN") != 1 || !strings.HasPrefix(text[strings.Index(text, "level="):], "level=WARN") {
		t.Errorf("a peer that is not reached is told of once as a warning:\n%s", text)
	}
	if note := lost.Note(9); note != "" {
		t.Errorf("of no peer: %s", note)
	}

	_, ra := dialing(t, b.Addr().String(), nil)
	ra.wait("up 2")
	rb.wait("up 1")
	if note := b.Note(1); note != "" {
		t.Errorf("all is well: %s", note)
	}
	dialing(t, b.Addr().String(), nil) // with the same identity
	await(t, "two NICs of one number pass", func() bool {
		return strings.Contains(b.Note(1), "two NICs seem to have the name 1") && strings.Contains(log.String(), "two NICs seem to have one name")
	})
}
