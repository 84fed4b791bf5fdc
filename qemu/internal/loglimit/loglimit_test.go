package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		var l Limiter
		for range 1000 {
			l.Warn(log, "again")
		}
		time.Sleep(interval)
		l.Warn(log, "again")
		if got := out.String(); strings.Count(got, "again") != 2 || !strings.Contains(got, "similar_left_out=999") || strings.Count(got, "similar_left_out") != 1 {
			t.Error(got)
		}
	})
}
