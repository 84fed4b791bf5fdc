package inprocess

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// open is a channel without a session: nobody asks anything through it.
func open() *Channel {
	c := &Channel{}
	c.change.L = &c.mu
	return c
}

// TestTheNewestAnswersAreKept: the newest are kept, up to a limit.
func TestTheNewestAnswersAreKept(t *testing.T) {
	c := open()
	for tag := range uint64(maxReplies) {
		c.Reply(tag, &abi.RegReply{Value: tag})
	}
	if list := c.Replies(); len(list) != maxReplies || list[0].Tag != 0 || list[maxReplies-1].Value != maxReplies-1 {
		t.Errorf("%d answers", len(list))
	}
	if list := c.Replies(); list != nil {
		t.Errorf("%d answers are given twice", len(list))
	}
	for tag := range uint64(maxReplies + 2) {
		c.Reply(tag, &abi.RegReply{})
	}
	if list := c.Replies(); len(list) != maxReplies || list[0].Tag != 2 || list[maxReplies-1].Tag != maxReplies+1 {
		t.Errorf("%d answers, the first is %d", len(list), list[0].Tag)
	}
}

// TestADriverWaitsForEvents: a driver that waits gets all events, in order and once, also those
// that are there when the session ends. After that there is nothing to wait for.
func TestADriverWaitsForEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open()
		var cqs []uint32
		var async []abi.AsyncEvent
		var err error
		calls := 0
		wait := func() {
			go func() { cqs, async, err = c.Events(); calls++ }()
			synctest.Wait()
		}
		if wait(); calls != 0 {
			t.Fatal("nothing is something")
		}
		c.CQEvent(3)
		c.CQEvent(4)
		c.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 5})
		if synctest.Wait(); calls != 0 {
			t.Error("told in the middle of a Step")
		}
		if n := c.Untaken(); n != 1 {
			t.Errorf("%d events are not taken", n)
		}
		c.Flush()
		if synctest.Wait(); calls != 1 || !slices.Equal(cqs, []uint32{3, 4}) || len(async) != 1 ||
			async[0].Number != 5 || err != nil {
			t.Errorf("%v, %v, %v", cqs, async, err)
		}
		c.CQEvent(6)
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		if wait(); calls != 2 || !slices.Equal(cqs, []uint32{6}) || err != nil {
			t.Errorf("at the end: %v, %v", cqs, err)
		}
		if wait(); calls != 3 || !errors.Is(err, ErrEnded) || cqs != nil {
			t.Errorf("after the end: %v, %v", cqs, err)
		}
	})
}

// TestLookingAtEventsDoesNotTakeThem: a driver that only looks leaves them there. Events that are
// gone or forgotten are not returned.
func TestLookingAtEventsDoesNotTakeThem(t *testing.T) {
	c := open()
	c.CQEvent(3)
	c.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 5})
	c.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 6})
	c.DropObject(abi.ObjectQP, 5)
	for range 2 {
		if cqs, async := c.Waiting(); !slices.Equal(cqs, []uint32{3}) || len(async) != 1 || async[0].Number != 6 {
			t.Errorf("%v, %v", cqs, async)
		}
	}
	if async := c.Async(); len(async) != 1 || c.Untaken() != 0 {
		t.Errorf("%v", async)
	}
	c.CQEvent(3)
	c.Forget()
	if cqs, async := c.Waiting(); len(cqs) > 0 || len(async) > 0 {
		t.Errorf("%v, %v", cqs, async)
	}
}
