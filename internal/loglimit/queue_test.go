package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// slow is a log that writes a line when it may.
type slow struct {
	bytes.Buffer
	may     chan struct{}
	writing chan struct{}
}

func (s *slow) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.may
	return s.Buffer.Write(b)
}

// TestQueueNeverWaits: while a log blocks, callers do not wait. Lines without room are counted, and
// the others are written, in order, when the log continues.
func TestQueueNeverWaits(t *testing.T) {
	out := &slow{may: make(chan struct{}), writing: make(chan struct{}, 2*maxWaiting)}
	var q Queue
	log := slog.New(q.Handler(slog.NewTextHandler(out, nil))).With("nic", "a").WithGroup("g")
	log.Info("first")
	<-out.writing // it is stuck
	for i := range maxWaiting + 7 {
		log.Info("more", "i", i)
	}
	close(out.may)
	q.Flush(time.Minute)
	text := out.String()
	if n := strings.Count(text, "\n"); n != 1+maxWaiting {
		t.Errorf("%d lines", n)
	}
	last := strings.Split(text, "\n")[maxWaiting]
	if strings.Count(text, "lines_lost_after") != 1 || !strings.Contains(last, "lines_lost_after=7") {
		t.Errorf("not the last line says what is lost behind it: %.300s", last)
	}
	if !strings.Contains(text, "nic=a") || !strings.Contains(text, "g.i=5\n") || !strings.Contains(text, "lines_lost_after=7") ||
		strings.Index(text, "g.i=5\n") > strings.Index(text, "g.i=6\n") {
		t.Errorf("%.300s", text)
	}
	q.Flush(time.Minute) // at once
	if !log.Enabled(t.Context(), slog.LevelInfo) || log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("the level is another")
	}
}

// TestFlushGivesUp: a log that never goes on does not keep a NIC from ending.
func TestFlushGivesUp(t *testing.T) {
	out := &slow{may: make(chan struct{}), writing: make(chan struct{}, 1)}
	var q Queue
	slog.New(q.Handler(slog.NewTextHandler(out, nil))).Info("first")
	<-out.writing
	q.Flush(time.Millisecond)
	close(out.may)
	q.Flush(time.Minute)
}
