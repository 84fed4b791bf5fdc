package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
)

const (
	least = time.Second // between two samples

	// The work of watching: this share of the time for taking samples, and so many bytes a second to
	// all streams together.
	workShare = 20 // one part in so many
	workBytes = 2 << 20

	// forget is how old a sample may be for rates to be measured from it: nobody looked meanwhile.
	forget = 20 * time.Second
)

// watch takes samples of the NIC for all streams.
type watch struct {
	source  Source
	streams chan struct{} // one for each stream
	turn    chan struct{} // whoever has put a value in may use what follows

	last  *sample
	state []byte // last as an event
	pause time.Duration
}

func newWatch(s Source) *watch {
	return &watch{source: s, streams: make(chan struct{}, maxStreams), turn: make(chan struct{}, 1)}
}

// events sends the state of the NIC until the browser goes away, and that of one function, if the
// request names one.
func (w *watch) events(out http.ResponseWriter, r *http.Request) {
	select {
	case w.streams <- struct{}{}:
		defer func() { <-w.streams }()
	default:
		http.Error(out, fmt.Sprintf("%d pages show this NIC already: close one", maxStreams), http.StatusServiceUnavailable)
		return
	}
	out.Header().Set("Content-Type", "text/event-stream")
	send := writer{out, http.NewResponseController(out)}
	if send.c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	function := r.URL.Query().Get("function")
	var seen *sample
	for {
		next, state, err := w.after(r.Context(), seen)
		switch {
		case r.Context().Err() != nil:
			return
		case err != nil:
			state = event("trouble", err.Error())
		case function != "":
			state = append(state[:len(state):len(state)], event("function", next.focus(function))...)
		}
		if _, err := send.Write(state); err != nil {
			return
		}
		if seen = next; err == nil {
			continue
		}
		select {
		case <-r.Context().Done():
		case <-time.After(least):
		}
	}
}

// after returns a sample that is newer than one that a stream has sent, and its event. It waits as
// long as samples have to be apart.
func (w *watch) after(ctx context.Context, seen *sample) (v *sample, state []byte, err error) {
	for {
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		rest := time.Duration(0) // until the next sample may be taken
		if w.last != nil {
			rest = time.Until(w.last.at.Add(w.pause))
		}
		if rest <= 0 {
			err = w.renew(ctx)
		}
		v, state = w.last, w.state
		<-w.turn
		if err != nil || v != seen {
			return v, state, err
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// renew takes a sample.
func (w *watch) renew(ctx context.Context) error {
	now := time.Now()
	next, err := take(ctx, w.source, now)
	if err != nil {
		return err
	}
	before := w.last
	if before != nil && now.Sub(before.at) > forget+w.pause {
		before = nil
	}
	w.last, w.state = next, event("state", next.since(before))
	w.pause = pause(time.Since(now), len(w.state), len(w.streams))
	return nil
}

// pause returns the time between two samples. took is the time that one took to make, size the bytes
// that each of the streams gets of it.
func pause(took time.Duration, size, streams int) time.Duration {
	sent := time.Duration(size) * time.Duration(streams) * time.Second / workBytes
	return max(least, workShare*took, sent)
}

// take asks the NIC for everything that the page shows.
func take(ctx context.Context, s Source, now time.Time) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	v := &sample{at: now}
	var errs [7]error
	v.nic, errs[0] = s.NIC(ctx)
	v.counters, errs[1] = s.Counters(ctx)
	v.functions, errs[2] = s.Functions(ctx)
	v.credits, errs[3] = s.Credits(ctx)
	v.qps, errs[4] = s.QPs(ctx)
	v.connections, errs[5] = s.Connections(ctx)
	v.keys, errs[6] = s.Keys(ctx)
	return v, errors.Join(errs[:]...)
}

// sample is the state of a NIC at one moment.
type sample struct {
	at          time.Time
	nic         control.NIC
	counters    control.Counters
	functions   []control.Function
	credits     []control.CreditNode
	qps         []control.QP
	connections []control.Connection
	keys        []control.Key
}

// event returns a server-sent event.
func event(name string, data any) []byte {
	b, err := json.Marshal(data) // has no line ends
	if err != nil {
		b, _ = json.Marshal(err.Error())
		name = "trouble"
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, b)
}

// writer sends each write at once, and ends when the browser does not take it.
type writer struct {
	http.ResponseWriter
	c *http.ResponseController
}

func (w writer) Write(b []byte) (int, error) {
	if err := w.c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	n, err := w.ResponseWriter.Write(b)
	if err == nil {
		err = w.c.Flush()
	}
	return n, err
}
