package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
)

// Limits of recordings. A recording ends at its limit of bytes, and what is queued then may follow,
// up to the second limit.
const (
	maxTrace        = 10 * time.Second
	maxTraceBytes   = 2 << 20
	maxCapture      = time.Minute
	maxCaptureBytes = 64 << 20
	maxQueued       = 16 << 20
)

// recorder makes one recording at a time.
type recorder struct {
	what   string
	source Source
	busy   chan struct{}
}

func newRecorder(what string, s Source) *recorder { return &recorder{what, s, make(chan struct{}, 1)} }

// trace sends control.TraceLines of a function's requests.
func (r *recorder) trace(w http.ResponseWriter, q *http.Request) {
	v := q.URL.Query()
	qpn, err := strconv.ParseUint(cmp.Or(v.Get("qp"), "0"), 0, 24)
	if err != nil {
		http.Error(w, fmt.Sprintf("qp %q: write a queue pair's number, as 0x11", v.Get("qp")), http.StatusBadRequest)
		return
	}
	r.record(w, q, recording{"application/jsonl", "vnic.jsonl", maxTrace, maxTraceBytes}, func(ctx context.Context, d time.Duration, out io.Writer) error {
		return r.source.Trace(ctx, control.TraceRequest{Function: v.Get("function"), QPN: uint32(qpn), For: d}, out)
	})
}

// capture sends sealed packets as pcapng. Clear ones are the tenants' data, and this server asks
// nobody who they are.
func (r *recorder) capture(w http.ResponseWriter, q *http.Request) {
	r.record(w, q, recording{"application/x-pcapng", "vnic.pcapng", maxCapture, maxCaptureBytes}, func(ctx context.Context, d time.Duration, out io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return r.source.Capture(ctx, config.CaptureSealed, nil, out)
	})
}

// recording describes a kind of recordings.
type recording struct {
	contentType, file string
	longest           time.Duration
	bytes             int
}

// record sends what f writes, for the time that the request asks for.
func (r *recorder) record(w http.ResponseWriter, q *http.Request, of recording, f func(context.Context, time.Duration, io.Writer) error) {
	d, err := time.ParseDuration(q.URL.Query().Get("for"))
	if err != nil || d <= 0 || d > of.longest {
		http.Error(w, fmt.Sprintf("for=%q: write a time up to %v, as 5s", q.URL.Query().Get("for"), of.longest), http.StatusBadRequest)
		return
	}
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	default:
		http.Error(w, r.what+" is being made already: wait for its end", http.StatusServiceUnavailable)
		return
	}
	ctx, full := context.WithCancel(q.Context())
	defer full()
	out := &bounded{writer: writer{w, http.NewResponseController(w)}, of: of, rest: of.bytes, full: full}
	if err = out.c.SetReadDeadline(time.Time{}); err == nil {
		err = f(ctx, d, out)
	}
	switch bad := (control.BadRequest{}); {
	case err == nil || out.begun: // it is too late to report an error
	case errors.As(err, &bad):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// bounded sends a recording, and ends it at its limit.
type bounded struct {
	writer
	of    recording
	begun bool
	rest  int    // bytes to its limit; below 0: it is ending
	full  func() // ends the recording
}

var errFull = errors.New("the recording has its most bytes")

func (b *bounded) Write(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		b.Header().Set("Content-Type", b.of.contentType)
		b.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", b.of.file))
	}
	if b.rest -= len(p); b.rest < -maxQueued {
		return 0, errFull
	} else if b.rest < 0 {
		b.full()
	}
	return b.writer.Write(p)
}
