package control

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

const traceOf17 = `{"operation":{"function":"","side":"","qpn":17,"op":"","wqe":0,"wr_id":0,"bytes":5,"transport":"","packets":0,"again":0,"steps":null}}
`

// until is a writer that cancels when it is written to.
type until struct {
	got    bytes.Buffer
	cancel context.CancelFunc
}

func (u *until) Write(b []byte) (int, error) {
	u.cancel()
	return u.got.Write(b)
}

// TestACaptureEndsWithItsReaderOrServer: a capture ends when its reader disconnects, and when the server ends.
func TestACaptureEndsWithItsReaderOrServer(t *testing.T) {
	f := &fake{captured: make(chan struct{})}
	s, c, path := serve(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &until{cancel: cancel}
	if err := c.Capture(ctx, "both", []string{"any"}, out); err != nil || !strings.HasPrefix(out.got.String(), "captured ") {
		t.Errorf("%v, %q", err, out.got.String())
	}
	select {
	case <-f.captured:
	case <-time.After(2 * time.Minute):
		t.Fatal("the provider was not told that the reader went away")
	}
	f.captured = make(chan struct{})
	var lines bytes.Buffer
	if err := c.Trace(t.Context(), TraceRequest{"pf0.vf1", 17, 5 * time.Second}, &lines); err != nil || lines.String() != "{\"tracing\":\"pf0.vf1\"}\n"+traceOf17 {
		t.Errorf("%v, %q", err, lines.String())
	}
	if err := c.Trace(t.Context(), TraceRequest{}, &lines); err == nil || !strings.Contains(err.Error(), "which function?") {
		t.Error(err)
	}
	if status, text := raw(t, path, "GET", "/v1/trace?qp=x"); status != 400 || !strings.Contains(text, "write a queue pair's number") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := raw(t, path, "GET", "/v1/trace?for=-1s"); status != 400 || !strings.Contains(text, "write a time") {
		t.Errorf("%d %s", status, text)
	}
	if err := c.Capture(t.Context(), "loud", nil, out); err == nil || !strings.Contains(err.Error(), "what mode?") {
		t.Errorf("%v", err)
	}
	begun := &until{cancel: func() {}}
	ended := make(chan error, 1)
	go func() { ended <- c.Capture(t.Context(), "both", nil, begun) }()
	time.Sleep(20 * time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("the capture outlived the server")
	}
}
