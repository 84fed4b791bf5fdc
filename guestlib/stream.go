package guestlib

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// stream is the control stream to the device. One goroutine writes, one reads, and one sends
// heartbeats and detects a silent device.
//
//	calls, heartbeats ──► out ──┐
//	                            ├─► writer ──► conn ──► reader ──► replies to callers
//	posted work ──► bell.dirty ─┘                            └───► handler (events)
//
// Doorbells are not queued one by one. A queue's bell is on the dirty list at most once, with the
// newest index, and the writer sends all dirty bells in one message. So while a write blocks,
// further posts add no messages. With a window (package window) the goroutine that rings puts the
// bell into the window at once; the writer does so only after the window was full.
type stream struct {
	conn    net.Conn
	handler func(h abi.MsgHeader, body []byte) error // called by the reader for messages that are no replies
	memory  *arena.Pool                              // memory that the device may access; nil: none

	mu       sync.Mutex
	out      []byte // framed messages not yet taken by the writer
	dirty    []*bell
	win      *window.Window         // nil: doorbells are messages
	calls    map[uint64]chan []byte // by tag
	tag      uint64
	err      error // set once; then nothing is accepted any more
	bye      bool  // goodbye was queued
	released bool  // the device closed the stream or stopped, so it does not access memory any more

	wake     chan struct{} // to the writer, capacity 1
	done     chan struct{} // closed after err is set
	lastSeen atomic.Int64  // time of the device's last message, in nanoseconds since epoch
	epoch    time.Time
	wg       sync.WaitGroup
}

// bell is the doorbell of one queue. Fields are guarded by the stream's mutex.
type bell struct {
	record abi.Doorbell
	fresh  *atomic.Uint32 // if not nil, the index is read from here when the doorbell is sent
	dirty  bool           // on the stream's dirty list
	muted  bool           // the queue is being destroyed: do not send it
}

const doorbellsPerMessage = (abi.MaxMessage - abi.MsgHeaderSize) / abi.DoorbellSize

// windowRetry is the pause before a full window is tried again.
const windowRetry = 100 * time.Microsecond

// newStream returns a stream over conn. start starts its goroutines.
func newStream(conn net.Conn) *stream {
	return &stream{
		conn:  conn,
		calls: map[uint64]chan []byte{},
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
		epoch: time.Now(),
	}
}

func (s *stream) start(interval, timeout time.Duration) {
	s.lastSeen.Store(int64(time.Since(s.epoch)))
	s.wg.Go(s.write)
	s.wg.Go(s.read)
	s.wg.Go(func() { s.watch(interval, timeout) })
}

// fail ends the stream with err, unless it has ended. After goodbye the end is expected, and the
// error is ErrClosed.
func (s *stream) fail(err error, released bool) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if s.bye {
		err = errClosedDevice
	}
	if !released && s.memory != nil {
		s.memory.Hold() // before any caller learns of the loss and frees memory of lost objects
	}
	s.err, s.released = err, released
	s.mu.Unlock()
	close(s.done)
	s.conn.Close() // wakes reader and writer; its error adds nothing to err
}

var errClosedDevice = fmt.Errorf("device: %w", ErrClosed)

// failure returns why the stream ended, or nil.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// refused waits for the end of a stream whose hello was refused, and returns the reason, which the
// device sends before the end.
func (s *stream) refused(ctx context.Context, op string, st abi.Status) error {
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	err := &StatusError{Op: op, Status: st}
	var why *StatusError
	if errors.As(s.failure(), &why) && why.Status == st {
		err.Reason = why.Reason
	}
	return err
}

// ring queues b with index. It does not block, and does not allocate once the lists have grown.
func (s *stream) ring(b *bell, index uint32) { s.ringBoth(b, index, nil) }

// ringBoth is ring that also sends another bell, unless it is nil, together with b and after it.
func (s *stream) ringBoth(b *bell, index uint32, also *bell) {
	s.mu.Lock()
	b.record.Index = index
	s.enqueue(b)
	if also != nil {
		s.enqueue(also)
	}
	s.flush()
	s.mu.Unlock()
}

// arm is ring for a completion queue. A request for solicited completions does not replace a
// pending one for any completion. The index is read when the doorbell is sent, because other
// goroutines may poll until then.
func (s *stream) arm(b *bell, flags uint8) {
	s.mu.Lock()
	if b.dirty {
		flags &= b.record.Flags
	}
	b.record.Flags = flags
	s.enqueue(b)
	s.flush()
	s.mu.Unlock()
}

// flush moves dirty bells to the window and leaves those that stay to the writer. The caller holds
// mu. After an error bells stay too; the writer meets it again, and ends the stream with it.
func (s *stream) flush() {
	_ = s.ringWindow()
	if len(s.dirty) > 0 {
		s.poke()
	}
}

// useWindow makes the stream send doorbells by w, which it then owns; nil goes back to messages.
func (s *stream) useWindow(w *window.Window) {
	s.mu.Lock()
	old := s.win
	s.win = w
	s.mu.Unlock()
	if old != nil {
		old.Close() // without mu: it waits for the goroutines that handle events
	}
}

// ringWindow moves bells from the dirty list to the window, if there is one, while there is room.
// The caller holds mu.
func (s *stream) ringWindow() error {
	if s.win == nil || s.err != nil {
		return nil
	}
	for len(s.dirty) > 0 {
		if b := s.dirty[0]; !b.muted {
			b.refresh()
			if err := s.win.Ring(&b.record); err == ring.ErrFull {
				return nil
			} else if err != nil {
				return protocolError("window: %v", err)
			}
		}
		s.dirty[0].dirty = false
		s.dirty = s.dirty[:copy(s.dirty, s.dirty[1:])]
	}
	return nil
}

// refresh updates the index just before the doorbell is sent.
func (b *bell) refresh() {
	if b.fresh != nil {
		b.record.Index = b.fresh.Load()
	}
}

func (s *stream) enqueue(b *bell) {
	if !b.dirty && !b.muted && s.err == nil {
		b.dirty = true
		s.dirty = append(s.dirty, b)
	}
}

// mute makes sure that b is not sent after messages that are queued from now on, because a doorbell
// must name a queue that exists (DRV-801).
func (s *stream) mute(b *bell) {
	s.mu.Lock()
	b.muted = true
	s.mu.Unlock()
}

// unmute undoes mute. Doorbells meanwhile were dropped.
func (s *stream) unmute(b *bell) {
	s.mu.Lock()
	b.muted = false
	s.mu.Unlock()
}

// rewind makes b, which is muted, one of a queue that begins again at index 0.
func (s *stream) rewind(b *bell) {
	s.mu.Lock()
	b.record.Index = 0
	s.mu.Unlock()
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// send queues a message without waiting.
func (s *stream) send(tag uint64, m abi.Message) {
	s.mu.Lock()
	if s.err == nil {
		s.out = abi.AppendStruct(s.out, tag, m)
	}
	s.mu.Unlock()
	s.poke()
}

// goodbye queues the driver's last message.
func (s *stream) goodbye() {
	s.mu.Lock()
	s.bye = true
	if s.err == nil {
		s.out = abi.AppendMessage(s.out, abi.MsgGoodbye, 0, nil)
	}
	s.mu.Unlock()
	s.poke()
}

// call sends m and returns the body of the answer.
func (s *stream) call(ctx context.Context, m abi.Message) ([]byte, error) {
	answer := make(chan []byte, 1)
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	s.tag++
	tag := s.tag
	s.calls[tag] = answer
	s.out = abi.AppendStruct(s.out, tag, m)
	s.mu.Unlock()
	s.poke()
	select {
	case body := <-answer:
		return body, nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.calls, tag)
		s.mu.Unlock()
		return nil, fmt.Errorf("%s: no answer: %w", m.MsgType(), ctx.Err())
	case <-s.done:
	}
	select {
	case body := <-answer: // it came before the end, which often follows a refusal at once
		return body, nil
	default:
		return nil, s.failure()
	}
}

// write is the writer goroutine.
func (s *stream) write() {
	var out []byte
	var bells []*bell
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		out, s.out = s.out, out[:0]
		err := s.ringWindow()
		full := s.win != nil && len(s.dirty) > 0
		if s.win == nil {
			bells, s.dirty = s.dirty, bells[:0]
			out = appendDoorbells(out, bells)
		}
		s.mu.Unlock()
		if err != nil {
			s.fail(err, false)
			return
		}
		if full { // the device has fallen behind: try again soon
			time.AfterFunc(windowRetry, s.poke)
		}
		if len(out) == 0 {
			continue
		}
		if _, err := s.conn.Write(out); err != nil {
			s.fail(needsReset("control stream: %w", err), true)
			return
		}
	}
}

// appendDoorbells appends the messages for all live bells and marks all bells as no longer dirty.
func appendDoorbells(out []byte, bells []*bell) []byte {
	var body [abi.MaxMessage - abi.MsgHeaderSize]byte
	n := 0
	for _, b := range bells {
		b.dirty = false
		if b.muted {
			continue
		}
		b.refresh()
		b.record.Marshal(body[n*abi.DoorbellSize:])
		if n++; n == doorbellsPerMessage {
			out = abi.AppendMessage(out, abi.MsgDoorbell, 0, body[:n*abi.DoorbellSize])
			n = 0
		}
	}
	if n > 0 {
		out = abi.AppendMessage(out, abi.MsgDoorbell, 0, body[:n*abi.DoorbellSize])
	}
	return out
}

// read is the reader goroutine.
func (s *stream) read() {
	buf := make([]byte, abi.MaxMessage)
	for {
		h, body, err := abi.ReadMessage(s.conn, buf)
		if err != nil {
			s.fail(needsReset("control stream: %w", err), true)
			return
		}
		s.lastSeen.Store(int64(time.Since(s.epoch)))
		switch h.Type {
		case abi.MsgHelloReply, abi.MsgRegReply:
			s.answer(h.Tag, body)
		case abi.MsgHeartbeat: // it only updates lastSeen
		default:
			if err := s.handler(h, body); err != nil {
				s.fail(err, stopped(err))
				return
			}
		}
	}
}

// stopped reports whether err is the device's message that it has stopped.
func stopped(err error) bool {
	var status *StatusError
	return errors.As(err, &status)
}

// answer passes body to the caller that waits for tag, if there is still one.
func (s *stream) answer(tag uint64, body []byte) {
	s.mu.Lock()
	c := s.calls[tag]
	delete(s.calls, tag)
	s.mu.Unlock()
	if c != nil {
		c <- append([]byte(nil), body...)
	}
}

// watch is the goroutine that sends heartbeats and detects a silent device.
func (s *stream) watch(interval, timeout time.Duration) {
	t := time.NewTicker(interval)
	defer t.Stop()
	var token abi.Heartbeat
	for {
		select {
		case <-t.C:
		case <-s.done:
			return
		}
		if silent := time.Since(s.epoch) - time.Duration(s.lastSeen.Load()); silent > timeout {
			s.fail(needsReset("%w: no sign of life for %v, more than the heartbeat timeout of %v", ErrTimeout, silent.Round(time.Millisecond), timeout), false)
			return
		}
		token.Token++
		s.send(0, &token)
	}
}
