package guestlib

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// admin is the pair of admin queues: commands and completions. The device executes commands in any
// order; each command has one caller. An admin lives from an enable of the function until a reset,
// a fault, or the end of the stream. Each object keeps the admin with which it was created. So no
// command about an object is sent in a later life, in which its numbers and keys mean other things.
type admin struct {
	stream  *stream
	timeout time.Duration
	sq, cq  area
	slots   chan struct{} // one token for each free entry; none before the function is enabled
	ended   chan struct{} // closed when err is set
	probing sync.Mutex    // held by probe
	told    atomic.Bool   // the device may have got the queues' addresses

	mu       sync.Mutex
	bell     bell
	commands *ring.Producer
	answers  *ring.CQReader
	id       uint32
	closed   bool  // the memory must not be accessed any more
	err      error // why the life ended; nil: it has not
	waiting  map[uint32]*command
}

// command is an outstanding admin command.
type command struct {
	op   abi.AdminOp
	done chan struct{} // closed after AdminCQE is set
	abi.AdminCQE
	// completed runs in the reader goroutine, before any event after the completion is handled.
	completed func(*abi.AdminCQE)
}

type params interface{ Marshal([]byte) }

type result interface{ Unmarshal([]byte) }

// adminLayout is that of both queues.
var adminLayout = ring.AdminLayout(abi.MaxAdminEntries)

// newAdmin returns the admin of a device's first life, with memory that serves all lives.
func newAdmin(s *stream, pool *arena.Pool, timeout time.Duration) (*admin, error) {
	sq, err := newArea(pool, adminLayout)
	if err != nil {
		return nil, err
	}
	cq, err := newArea(pool, adminLayout)
	if err != nil {
		sq.free()
		return nil, err
	}
	return adminIn(s, sq, cq, timeout), nil
}

// adminIn returns an admin with queues in sq and cq. They may still hold what an earlier life wrote.
func adminIn(s *stream, sq, cq area, timeout time.Duration) *admin {
	return &admin{
		stream: s, timeout: timeout, sq: sq, cq: cq,
		slots:    make(chan struct{}, abi.MaxAdminEntries),
		ended:    make(chan struct{}),
		bell:     bell{record: abi.Doorbell{Kind: abi.DoorbellAdmin}},
		commands: ring.NewProducer(ring.Mem(sq.block.Bytes()), adminLayout),
		answers:  ring.NewCQReader(ring.Mem(cq.block.Bytes()), adminLayout),
		waiting:  map[uint32]*command{},
	}
}

// clear zeroes the queues (DRV-301), whose addresses the device gets next. The function must be in
// RESET.
func (a *admin) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.sq.block.Bytes())
	clear(a.cq.block.Bytes())
	a.told.Store(true)
}

// open begins to send commands, some of which may wait already. The function must be READY.
func (a *admin) open() {
	for range abi.MaxAdminEntries {
		a.slots <- struct{}{}
	}
}

// do executes a command. in and out may be nil. Once the command is sent, do waits for the answer
// even if ctx ends, because only the answer tells which objects exist. A device that does not
// answer within the command timeout is lost.
func (a *admin) do(ctx context.Context, op abi.AdminOp, in params, out result, completed func(*abi.AdminCQE)) error {
	select {
	case <-a.slots:
	case <-ctx.Done():
		return a.late(ctx, op)
	case <-a.ended:
		return a.failure()
	}
	if ctx.Err() != nil {
		a.slots <- struct{}{}
		return a.late(ctx, op)
	}
	c, err := a.post(op, in, completed)
	if err != nil {
		return err
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-a.ended:
	}
	select {
	case <-c.done: // also if the time is over or the life has ended since
	default:
		if err := a.failure(); err != nil {
			return err
		}
		a.stream.fail(needsReset("%s: %w: no completion within %v", op, ErrTimeout, a.timeout), false)
		return a.stream.failure()
	}
	if c.Status != abi.StatusOK {
		return &StatusError{Op: op.String(), Status: c.Status}
	}
	if out != nil {
		out.Unmarshal(c.Result[:])
	}
	return nil
}

// late returns the error of a command whose ctx ended before it was sent. If the life has ended
// too, it returns that error: an object of an ended life is gone, and must not ring doorbells in
// the next.
func (a *admin) late(ctx context.Context, op abi.AdminOp) error {
	if err := a.failure(); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", op, ctx.Err())
}

// tryPost sends a command without waiting for its answer. If the queue is full it sends nothing and
// returns false.
func (a *admin) tryPost(op abi.AdminOp, in params) bool {
	select {
	case <-a.slots:
		_, err := a.post(op, in, nil)
		return err == nil
	default:
		return false
	}
}

// post sends a command. The caller must have taken a slot.
func (a *admin) post(op abi.AdminOp, in params, completed func(*abi.AdminCQE)) (*command, error) {
	return a.postWith(op, in, completed, nil)
}

// postWith is post that also sends another doorbell, unless it is nil, after the command's.
func (a *admin) postWith(op abi.AdminOp, in params, completed func(*abi.AdminCQE), also *bell) (*command, error) {
	c := &command{op: op, done: make(chan struct{}), completed: completed}
	e := abi.AdminCmd{Opcode: op}
	if in != nil {
		in.Marshal(e.Params[:])
	}
	var entry [abi.AdminCmdSize]byte
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return nil, a.err
	case a.closed:
		return nil, errClosedDevice
	}
	a.id++
	e.ID = a.id
	e.Marshal(entry[:])
	if err := a.commands.Push(entry[:]); err != nil {
		return nil, fmt.Errorf("admin queue: %s: %w", op, err)
	}
	index, _, err := a.commands.Publish()
	if err != nil {
		return nil, fmt.Errorf("admin queue: %s: %w", op, err)
	}
	a.waiting[e.ID] = c
	a.stream.ringBoth(&a.bell, index, also)
	return c, nil
}

// end ends the life with err. Later calls do nothing.
func (a *admin) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
		close(a.ended)
	}
}

// failure returns why the life ended, or nil.
func (a *admin) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// watch ends the life when the stream ends.
func (a *admin) watch() {
	select {
	case <-a.stream.done:
		a.end(a.stream.failure())
	case <-a.ended:
	}
}

// close makes sure that the memory is not accessed any more.
func (a *admin) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
}

// poll handles completions. Only the reader goroutine calls it.
func (a *admin) poll() error {
	for {
		e, c, err := a.next()
		if err != nil || c == nil {
			return err
		}
		c.AdminCQE = e
		if c.completed != nil {
			c.completed(&c.AdminCQE)
		}
		a.slots <- struct{}{} // before the caller wakes: the entry is free when the command is done
		close(c.done)
	}
}

// next takes one completion and returns it with its command, or nil if there is no completion.
func (a *admin) next() (e abi.AdminCQE, c *command, err error) {
	var entry [abi.AdminCQESize]byte
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || !a.told.Load() { // before, there may be completions of an earlier life
		return e, nil, nil
	}
	ok, err := a.answers.Poll(entry[:])
	if err != nil || !ok {
		return e, nil, err
	}
	e.Unmarshal(entry[:])
	if c = a.waiting[e.ID]; c == nil {
		return e, nil, protocolError("admin completion for command %d, which is not outstanding", e.ID)
	}
	delete(a.waiting, e.ID)
	return e, c, a.answers.Commit()
}
