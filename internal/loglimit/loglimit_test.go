package loglimit

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOneLineASecondFollowsABurst: a burst of 20 lines is written, then one a second; the next line says how many were
// left out. After a silence there may be a burst again, not a longer one.
func TestOneLineASecondFollowsABurst(t *testing.T) {
	const second = 1_000_000_000
	for _, start := range []int64{0, 1_800_000_000 * second} { // of a clock of the test's, or since 1970
		var out bytes.Buffer
		l := Log{To: slog.New(slog.NewTextHandler(&out, nil))}
		lines := func(at int64, n int) (written int, text string) {
			out.Reset()
			for i := range n {
				l.Line(start+at, slog.LevelWarn, "line", "i", i)
			}
			return strings.Count(out.String(), "\n"), out.String()
		}
		for _, c := range []struct {
			at              int64
			n, written, out int // out: lines left out before
		}{
			{0, 20, 20, 0},
			{0, 7, 0, 0},
			{second - 1, 1, 0, 0},
			{second, 2, 1, 8},
			{second*5/2 - 1, 2, 1, 1}, // half of the next second has passed
			{3 * second, 2, 1, 1},
			{5 * second, 3, 2, 1},
			{5 * second, 1, 0, 0},
			{100 * second, 25, 20, 2},
			{101 * second, 1, 1, 5},
			{110 * second, 10, 9, 0},
			{1000 * second, 1, 1, 1},
			{1001 * second, 25, 20, 0},
		} {
			n, text := lines(c.at, c.n)
			said := strings.Count(text, "lines_left_out_before")
			if n != c.written || said > 1 || (said == 1) != (c.out > 0) || c.out > 0 && !strings.Contains(text, fmt.Sprintf("i=0 lines_left_out_before=%d\n", c.out)) {
				t.Errorf("from %d on, at %d: %d lines of %d, want %d, and %d left out before:\n%s", start, c.at, n, c.n, c.written, c.out, text)
			}
		}
	}
}

// TestLinesMayWait: a shard's lines are written when its Step has ended.
func TestLinesMayWait(t *testing.T) {
	var out bytes.Buffer
	var waiting []func()
	l := Log{To: slog.New(slog.NewTextHandler(&out, nil)), Later: func(write func()) { waiting = append(waiting, write) }}
	l.Line(1, slog.LevelInfo, "one")
	l.Line(1, slog.LevelDebug, "two")
	if out.Len() > 0 {
		t.Errorf("written in the Step: %s", out.String())
	}
	for _, write := range waiting {
		write()
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=INFO msg=one") {
		t.Error(text)
	}
}

// TestWarningsAreLimitedByTheWallClock: Warn limits lines by the wall clock.
func TestWarningsAreLimitedByTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := Log{To: slog.New(slog.NewTextHandler(&out, nil))}
		for range 1000 {
			l.Warn("again")
		}
		time.Sleep(time.Second)
		l.Warn("again")
		if text := out.String(); strings.Count(text, "level=WARN msg=again") != 21 || !strings.Contains(text, "lines_left_out_before=980") {
			t.Error(text)
		}
	})
}

// TestAPanicIsLoggedWithItsFrame: the log has the frame that caused a panic, but only the beginning of a long one.
func TestAPanicIsLoggedWithItsFrame(t *testing.T) {
	for _, n := range []int{0, 256, 257} {
		var out bytes.Buffer
		l := Log{To: slog.New(slog.NewTextHandler(&out, nil))}
		frame := bytes.Repeat([]byte{0xab}, n)
		l.Panicked(1, "a frame", "no luck", frame)
		text := out.String()
		for _, want := range []string{
			"level=ERROR", "fault in the program: a frame was dropped", `panic="no luck"`, fmt.Sprintf("bytes=%d ", n),
			fmt.Sprintf("begin=%s ", hex.EncodeToString(frame[:min(n, 256)])), "loglimit.TestAPanicIsLoggedWithItsFrame",
		} {
			if !strings.Contains(strings.ReplaceAll(text, `begin=""`, "begin="), want) {
				t.Errorf("%d bytes: no %q in %s", n, want, text)
			}
		}
	}
}
