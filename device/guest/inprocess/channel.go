package inprocess

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ErrEnded is returned to a driver whose session the device has ended, or that has left.
var ErrEnded = errors.New("inprocess: the session has ended")

// maxReplies bounds the answers that nobody takes.
const maxReplies = 256

// Reply is the answer to a register access.
type Reply struct {
	Tag uint64
	abi.RegReply
}

// Channel is the control channel of one driver. It implements guest.Channel.
type Channel struct {
	session *guest.Session

	mu      sync.Mutex
	change  sync.Cond
	events  guest.EventStore
	replies []Reply
	tag     uint64
	ended   bool
	onEnd   func(error)
}

var (
	_ guest.Channel = (*Channel)(nil)
	_ guest.Served  = (*Channel)(nil)
)

// Open says hello for a driver and returns its channel. The error is a *guest.Refusal where the
// device refuses it.
func Open(nic guest.NIC, g guest.Guest, from guest.Key, attachment string, hello *abi.Hello) (*Channel, error) {
	c := &Channel{}
	c.change.L = &c.mu
	var err error
	c.session, err = guest.Open(context.Background(), nic, g, from, attachment, hello, c)
	return c, err
}

// Serve waits until the session is to end, and ends it.
func (c *Channel) Serve() {
	c.mu.Lock()
	for !c.ended {
		c.change.Wait()
	}
	c.mu.Unlock()
	_ = c.session.Close(nil)
	c.change.Broadcast()
}

// Expect implements guest.Served: the driver has said hello already.
func (c *Channel) Expect(time.Duration) {}

// Drop implements guest.Served.
func (c *Channel) Drop() { c.End() }

// Session returns the driver's session.
func (c *Channel) Session() *guest.Session { return c.session }

// Close ends the session. fault says how the driver broke the rules, nil if it did not. Close
// returns fault or, if that is nil, how the driver broke the rules of shared memory.
func (c *Channel) Close(fault error) error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.change.Broadcast()
	return c.session.Close(fault)
}

// Ask puts a request without waiting for its reply. It reports false when the session is over.
func (c *Channel) Ask(r guest.Request) bool { return c.session.Put(r) }

// Ring rings a doorbell.
func (c *Channel) Ring(kind abi.DoorbellKind, queue, index uint32) bool {
	return c.Ask(guest.Request{Kind: guest.Ring, Doorbell: abi.Doorbell{Kind: kind, Queue: queue, Index: index}})
}

// Read reads a register, waiting for the shard's thread.
func (c *Channel) Read(offset, width uint32) (uint64, abi.Status, error) {
	return c.access(guest.Request{Kind: guest.RegRead, Offset: offset, Width: width})
}

// Write writes a register, waiting for the shard's thread.
func (c *Channel) Write(offset, width uint32, value uint64) (abi.Status, error) {
	_, st, err := c.access(guest.Request{Kind: guest.RegWrite, Offset: offset, Width: width, Value: value})
	return st, err
}

func (c *Channel) access(r guest.Request) (uint64, abi.Status, error) {
	c.mu.Lock()
	c.tag++
	r.Tag = c.tag
	c.mu.Unlock()
	if !c.Ask(r) {
		return 0, 0, ErrEnded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if i := slices.IndexFunc(c.replies, func(a Reply) bool { return a.Tag == r.Tag }); i >= 0 {
			a := c.replies[i]
			c.replies = slices.Delete(c.replies, i, i+1)
			return a.Value, a.Status, nil
		}
		if c.ended {
			return 0, 0, ErrEnded
		}
		c.change.Wait()
	}
}

// Replies takes the answers that nobody waits for.
func (c *Channel) Replies() []Reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.replies
	c.replies = nil
	return r
}

// Async takes the asynchronous events.
func (c *Channel) Async() []abi.AsyncEvent {
	_, async := c.take()
	return async
}

// Events takes all events, waiting for one.
func (c *Channel) Events() (cqs []uint32, async []abi.AsyncEvent, err error) {
	c.mu.Lock()
	for c.events.Empty() && !c.ended {
		c.change.Wait()
	}
	ended := c.events.Empty()
	c.mu.Unlock()
	if ended {
		return nil, nil, ErrEnded
	}
	cqs, async = c.take()
	return cqs, async, nil
}

func (c *Channel) take() (cqs []uint32, async []abi.AsyncEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cqs, async = slices.Clone(c.events.CQs()), slices.Clone(c.events.Async())
	c.events.Taken()
	return cqs, async
}

// Waiting returns the events that the driver has not taken, and takes none.
func (c *Channel) Waiting() (cqs []uint32, async []abi.AsyncEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events.CQs()), slices.Clone(c.events.Async())
}

// CQEvent implements guest.Channel.
func (c *Channel) CQEvent(cqn uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.CQEvent(cqn)
}

// AsyncEvent implements guest.Channel.
func (c *Channel) AsyncEvent(e *abi.AsyncEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.AsyncEvent(e)
}

// DropObject implements guest.Channel.
func (c *Channel) DropObject(kind abi.Object, number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.DropObject(kind, number)
}

// Untaken implements guest.Channel.
func (c *Channel) Untaken() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events.Waiting()
}

// Reply implements guest.Channel.
func (c *Channel) Reply(tag uint64, r *abi.RegReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.replies) == maxReplies { // nobody waits for the oldest
		c.replies = c.replies[1:]
	}
	c.replies = append(c.replies, Reply{tag, *r})
}

// Forget implements guest.Channel.
func (c *Channel) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.Forget()
}

// Flush implements guest.Channel.
func (c *Channel) Flush() bool {
	c.change.Broadcast()
	return true
}

// End implements guest.Channel: the driver hears of it when it asks next, and closes the Channel.
func (c *Channel) End() {
	c.mu.Lock()
	c.ended = true
	f := c.onEnd
	c.mu.Unlock()
	c.change.Broadcast()
	if f != nil {
		f(c.session.Fault())
	}
}

// OnEnd makes the channel call f when the device ends the session. fault says how the driver
// broke the rules of shared memory, nil if it did not.
func (c *Channel) OnEnd(f func(fault error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onEnd = f
}
