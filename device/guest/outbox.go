package guest

import (
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// maxReplies is the most answers that may wait for a guest that does not read.
const maxReplies = 64 // further requests are not read from the stream

// outbox passes a function's events and replies to the writer of its stream. The shard appends and,
// at the end of its Step, flushes. The writer takes everything at once: completion events as a set
// of CQ numbers, events and replies in order. If nothing but completion events waits, the flush
// tries to write them itself.
type outbox struct {
	mu      sync.Mutex
	change  sync.Cond
	events  EventStore
	replies []byte // encoded messages
	waiting int    // requests read from the stream and not yet answered on it
	final   []byte // encoded last message; the writer closes after it
	closed  bool
	writing bool    // the writer is busy writing, or has not started
	direct  *direct // writes completion events without the writer; may be nil
	event   []byte  // for direct
}

// maxDirect is the most completion events that a flush writes itself.
const maxDirect = 256

func newOutbox() *outbox {
	o := &outbox{writing: true}
	o.change.L = &o.mu
	return o
}

// CQEvent implements Channel.
func (o *outbox) CQEvent(cqn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.CQEvent(cqn)
}

// AsyncEvent implements Channel.
func (o *outbox) AsyncEvent(e *abi.AsyncEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.AsyncEvent(e)
}

// Gone implements Channel.
func (o *outbox) Gone(kind abi.Object, number uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.Gone(kind, number)
}

// Untaken implements Channel.
func (o *outbox) Untaken() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.events.Waiting()
}

// Reply implements Channel.
func (o *outbox) Reply(tag uint64, r *abi.RegReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replies = abi.AppendStruct(o.replies, tag, r)
}

// Forget implements Channel.
func (o *outbox) Forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events.Forget()
}

// Flush implements Channel.
func (o *outbox) Flush() (woke bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.empty() || o.writing || o.sendNow() {
		return false // the writer looks again before it waits
	}
	o.change.Broadcast()
	return true
}

func (o *outbox) empty() bool { return o.events.Empty() && len(o.replies) == 0 }

// sendNow writes completion events at once, if nothing else waits. If the stream takes only a part
// of the message, the writer sends the rest first of all.
func (o *outbox) sendNow() bool {
	if o.direct == nil || o.closed || o.final != nil || o.events.Waiting()+len(o.replies) > 0 || len(o.events.CQs()) > maxDirect {
		return false
	}
	o.event = appendCQEvent(o.event[:0], o.events.CQs())
	n := o.direct.write(o.event)
	if n > 0 {
		o.events.Taken()
		o.replies = append(o.replies, o.event[n:]...)
	}
	return n == len(o.event)
}

// reserve is called by the reader before it passes a request on. It waits while too many are
// unanswered, and returns false once the outbox is closed.
func (o *outbox) reserve() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.waiting >= maxReplies && !o.closed {
		o.change.Wait()
	}
	o.waiting++
	return !o.closed
}

// answer answers a reserved request that does not go to the shard.
func (o *outbox) answer(tag uint64, m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replies = abi.AppendStruct(o.replies, tag, m)
	o.change.Broadcast()
}

// finish makes m the last message of the stream; the first caller wins.
func (o *outbox) finish(m abi.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final == nil {
		o.final = abi.AppendStruct(nil, 0, m)
	}
	o.change.Broadcast()
}

// close ends the writer without a last message.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.change.Broadcast()
}

// next waits for output and appends it to b as messages. last is true with the final message, and
// also when the outbox was closed.
func (o *outbox) next(b []byte) (out []byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writing = false
	defer func() { o.writing = true }()
	for o.empty() && o.final == nil && !o.closed {
		o.change.Wait()
	}
	b = append(b, o.replies...)
	o.replies = o.replies[:0]
	async := o.events.Async()
	for i := range async {
		b = abi.AppendStruct(b, 0, &async[i])
	}
	const most = (abi.MaxMessage - abi.MsgHeaderSize) / 4
	for list := o.events.CQs(); len(list) > 0; list = list[min(len(list), most):] {
		b = appendCQEvent(b, list[:min(len(list), most)])
	}
	o.events.Taken()
	if o.waiting > 0 {
		o.waiting = 0
		o.change.Broadcast()
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
