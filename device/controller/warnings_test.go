package controller

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// TestAWarningIsLoggedOnce checks that a warning is logged when it is new or its text changes, and
// stays until it is cleared.
func TestAWarningIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	w := NewWarnings(slog.New(slog.NewTextHandler(&log, nil)))
	said := func(want int, list ...string) {
		t.Helper()
		if n := strings.Count(log.String(), "runs without"); n != want || !slices.Equal(w.List(), list) {
			t.Errorf("said %d times, want %d; there are %q", n, want, w.List())
		}
	}
	said(0)
	w.Warn("metrics", errors.New("busy"), "wait")
	w.Warn("metrics", errors.New("busy"), "wait")
	said(1, "metrics: busy")
	w.Warn("capture", errors.New("full"), "wait")
	w.Warn("metrics", errors.New("gone"), "wait")
	said(3, "capture: full", "metrics: gone")
	w.Clear("metrics")
	w.Clear("metrics")
	said(3, "capture: full")
	w.Warn("metrics", errors.New("gone"), "wait")
	said(4, "capture: full", "metrics: gone")
}
