package guestlib

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// readDoorbells returns the records of the next message, which must be doorbells.
func readDoorbells(t *testing.T, conn net.Conn) []abi.Doorbell {
	t.Helper()
	h, body, err := abi.ReadMessage(conn, make([]byte, abi.MaxMessage))
	if err != nil || h.Type != abi.MsgDoorbell {
		t.Fatalf("%v, %v", h.Type, err)
	}
	var out []abi.Doorbell
	for ; len(body) > 0; body = body[abi.DoorbellSize:] {
		var d abi.Doorbell
		d.Unmarshal(body)
		out = append(out, d)
	}
	return out
}

func pipeStream(t *testing.T) (*stream, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	s := newStream(near)
	s.handler = func(abi.MsgHeader, []byte) error { return nil }
	s.start(time.Hour, time.Hour)
	t.Cleanup(func() {
		s.fail(ErrClosed, true)
		s.wg.Wait()
		far.Close()
	})
	return s, far
}

// While a write blocks, doorbells gather: each queue once, with its newest index, in one message.
func TestDoorbellsGatherWhileAWriteBlocks(t *testing.T) {
	s, far := pipeStream(t)
	sq := &bell{record: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 5}}
	rq := &bell{record: abi.Doorbell{Kind: abi.DoorbellRQ, Queue: 5}}
	var polled atomic.Uint32
	cq := &bell{record: abi.Doorbell{Kind: abi.DoorbellCQArm, Queue: 9}, fresh: &polled}
	muted := &bell{record: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 6}}
	first := &bell{record: abi.Doorbell{Kind: abi.DoorbellAdmin}}
	s.ring(first, 1)
	for { // until the writer has taken it and blocks in the pipe
		s.mu.Lock()
		taken := !first.dirty
		s.mu.Unlock()
		if taken {
			break
		}
	}
	for i := range uint32(100) {
		s.ring(sq, i+1)
		s.ring(muted, i+1)
		s.ring(rq, 2*i)
		s.arm(cq, abi.ArmSolicitedOnly)
	}
	s.arm(cq, 0) // any completion
	s.arm(cq, abi.ArmSolicitedOnly)
	s.mute(muted)
	polled.Store(101) // after arming, before the doorbell leaves
	if got := readDoorbells(t, far); len(got) != 1 {
		t.Fatalf("first message: %+v", got)
	}
	want := []abi.Doorbell{
		{Kind: abi.DoorbellSQ, Queue: 5, Index: 100},
		{Kind: abi.DoorbellRQ, Queue: 5, Index: 198},
		{Kind: abi.DoorbellCQArm, Queue: 9, Index: 101},
	}
	if diff := cmp.Diff(want, readDoorbells(t, far)); diff != "" {
		t.Error(diff)
	}
	s.arm(cq, abi.ArmSolicitedOnly) // the pending request for any is gone with the message
	if got := readDoorbells(t, far); len(got) != 1 || got[0].Flags != abi.ArmSolicitedOnly {
		t.Errorf("%+v", got)
	}
}

// More dirty queues than a message holds take several messages.
func TestManyDoorbellsTakeSeveralMessages(t *testing.T) {
	const n = 2*doorbellsPerMessage + 3
	bells := make([]*bell, n)
	for i := range bells {
		bells[i] = &bell{record: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: uint32(i)}}
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go near.Write(appendDoorbells(nil, bells))
	next := uint32(0)
	for _, want := range []int{doorbellsPerMessage, doorbellsPerMessage, 3} {
		got := readDoorbells(t, far)
		if len(got) != want {
			t.Fatalf("%d records in a message, want %d", len(got), want)
		}
		for _, d := range got {
			if d.Queue != next {
				t.Fatalf("queue %d, want %d", d.Queue, next)
			}
			next++
		}
	}
}

// TestAnAnswerCountsThoughTheStreamHasEnded: a caller that begins to wait when both have happened gets
// the answer.
func TestAnAnswerCountsThoughTheStreamHasEnded(t *testing.T) {
	for range 50 {
		near, far := net.Pipe()
		s := newStream(near)
		ctx := waitedFor{t.Context(), func() {
			s.answer(1, []byte("the answer"))
			s.fail(io.EOF, true)
		}}
		if body, err := s.call(ctx, &abi.Hello{}); err != nil || string(body) != "the answer" {
			t.Fatalf("%q, %v", body, err)
		}
		far.Close()
	}
}

// waitedFor is a context that does something when somebody begins to wait for its end.
type waitedFor struct {
	context.Context
	do func()
}

func (c waitedFor) Done() <-chan struct{} {
	c.do()
	return c.Context.Done()
}

// TestACompletionCountsThoughTheLifeHasEnded: so does the completion of an admin command.
func TestACompletionCountsThoughTheLifeHasEnded(t *testing.T) {
	src, err := arena.NewMemfd(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	pool := arena.NewPool(src)
	defer pool.Close()
	first, err := newAdmin(newStream(nil), pool, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		a := adminIn(newStream(nil), first.sq, first.cq, time.Hour)
		a.open()
		go func() { // completes the command and ends the life while, or before, the command is waited for
			var c *command
			for c == nil {
				a.mu.Lock()
				c = a.waiting[1]
				a.mu.Unlock()
			}
			close(c.done)
			a.end(io.EOF)
		}()
		if err := a.do(t.Context(), abi.AdminOpQueryDevice, nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		<-a.ended
	}
}
