package device

import (
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Bounds of what waits for a guest that does not read.
const (
	maxAsyncEvents = 256 // further ones are dropped and counted
	maxReplies     = 64  // further requests are not read from the stream
)

// outbox carries a function's events and replies to its session's writer. The
// shard appends, the writer takes everything at once: completion events as a
// set of CQ numbers, events and replies in order. A completion event before which
// nothing waits is written by the shard itself, if it can be.
type outbox struct {
	mu      sync.Mutex
	change  sync.Cond
	cqs     []uint32 // distinct
	async   []abi.AsyncEvent
	replies []byte // encoded messages
	waiting int    // requests taken from the stream, not yet answered on it
	final   []byte // encoded last message; the writer closes after it
	closed  bool
	writing bool         // the writer is not there: it writes, or has not begun
	direct  *direct      // writes completion events without the writer; may be nil
	event   []byte       // for direct
	roused  *atomic.Bool // set with each signal, so that the shard's thread lets the writer run; may be nil

	dropped uint64 // async events lost for want of room
}

func newOutbox() *outbox {
	o := &outbox{writing: true}
	o.change.L = &o.mu
	return o
}

// signal wakes the writer, and a reader that waits in reserve.
func (o *outbox) signal() {
	o.change.Broadcast()
	if o.roused != nil {
		o.roused.Store(true)
	}
}

// cqEvent says that a completion queue has news.
func (o *outbox) cqEvent(cqn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.cqs {
		if n == cqn {
			return
		}
	}
	if o.sendNow(cqn) {
		return
	}
	o.cqs = append(o.cqs, cqn)
	if len(o.cqs) == 1 {
		o.signal()
	}
}

// sendNow writes a completion event at once, if nothing is before it. What the
// stream did not take of it is the writer's, before all else.
func (o *outbox) sendNow(cqn uint32) bool {
	if o.direct == nil || o.writing || o.closed || o.final != nil || len(o.cqs)+len(o.async)+len(o.replies) > 0 {
		return false
	}
	o.event = appendCQEvent(o.event[:0], []uint32{cqn})
	n := o.direct.write(o.event)
	if 0 < n && n < len(o.event) {
		o.replies = append(o.replies, o.event[n:]...)
		o.signal()
	}
	return n > 0
}

// asyncEvent appends an event, or counts it as dropped and reports false.
func (o *outbox) asyncEvent(e *abi.AsyncEvent) (taken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.async) >= maxAsyncEvents {
		o.dropped++
		return false
	}
	o.async = append(o.async, *e)
	o.signal()
	return true
}

// forget drops the events that were not sent yet: the function was reset, and
// they speak of objects that are gone.
func (o *outbox) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cqs, o.async = o.cqs[:0], o.async[:0]
}

// droppedEvents counts events lost for want of room.
func (o *outbox) droppedEvents() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}

// reserve is called by the reader before it hands a request on; it waits while
// too many are unanswered and reports false once the outbox is closed.
func (o *outbox) reserve() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.waiting >= maxReplies && !o.closed {
		o.change.Wait()
	}
	o.waiting++
	return !o.closed
}

// reply answers a reserved request.
func (o *outbox) reply(tag uint64, m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replies = abi.AppendStruct(o.replies, tag, m)
	o.signal()
}

// finish makes m the last message of the stream; the first caller wins.
func (o *outbox) finish(m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final == nil {
		o.final = abi.AppendStruct(nil, 0, m)
	}
	o.signal()
}

// close ends the writer without a last message.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

// next waits for output and appends it to b as messages. last is set with the
// final message, and also when the outbox was closed.
func (o *outbox) next(b []byte) (out []byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing = false
	defer func() { o.writing = true }()
	for len(o.cqs) == 0 && len(o.async) == 0 && len(o.replies) == 0 && o.final == nil && !o.closed {
		o.change.Wait()
	}
	b = append(b, o.replies...)
	o.replies = o.replies[:0]
	for i := range o.async {
		b = abi.AppendStruct(b, 0, &o.async[i])
	}
	o.async = o.async[:0]
	for len(o.cqs) > 0 {
		n := min(len(o.cqs), (abi.MaxMessage-abi.MsgHeaderSize)/4)
		b = appendCQEvent(b, o.cqs[:n])
		o.cqs = o.cqs[:copy(o.cqs, o.cqs[n:])]
	}
	if o.waiting > 0 {
		o.waiting = 0
		o.signal()
	}
	return append(b, o.final...), o.closed || o.final != nil
}

func appendCQEvent(b []byte, cqs []uint32) []byte {
	b = abi.AppendMessage(b, abi.MsgCQEvent, 0, nil)
	start := len(b) - abi.MsgHeaderSize
	for _, n := range cqs {
		b = append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	n := len(b) - start
	b[start], b[start+1], b[start+2], b[start+3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return b
}
