package guest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// socketPair returns two ends of a stream.
func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = conns[i].Close() })
	}
	return conns[0], conns[1]
}

// TestCompletionEventsGoStraightToTheStream checks that completion events go straight to the stream
// while nothing waits, and otherwise through the writer (which has other output, or the guest does
// not read), in order and each once.
func TestCompletionEventsGoStraightToTheStream(t *testing.T) {
	near, far := socketPair(t)
	o := newOutbox()
	o.direct = newDirect(near)
	say := func(cqn uint32) {
		o.CQEvent(cqn)
		o.Flush()
	}
	if say(1); len(o.events.CQs()) != 1 {
		t.Fatal("an event went out before the writer was there")
	}
	done := make(chan struct{})
	defer func() {
		o.close()
		_ = near.Close()
		<-done
	}()
	go func() {
		defer close(done)
		var b []byte
		for last := false; !last; {
			b, last = o.next(b[:0])
			if _, err := near.Write(b); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, abi.MaxMessage)
	next := func() (typ abi.MsgType, cqs []uint32) {
		t.Helper()
		_ = far.SetReadDeadline(time.Now().Add(patience))
		h, body, err := abi.ReadMessage(far, buf)
		if err != nil {
			t.Fatal(err)
		}
		for ; h.Type == abi.MsgCQEvent && len(body) >= 4; body = body[4:] {
			cqs = append(cqs, uint32(body[0])|uint32(body[1])<<8|uint32(body[2])<<16|uint32(body[3])<<24)
		}
		return h.Type, cqs
	}
	if _, cqs := next(); len(cqs) != 1 || cqs[0] != 1 {
		t.Fatalf("%v", cqs)
	}
	idle := func() (is bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !o.writing
	}
	for deadline := time.Now().Add(patience); !idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the writer does not come back")
		}
	}
	if n := allocs.PerRun(100, func() {
		say(7)
		if len(o.events.CQs()) != 0 {
			t.Fatal("not written at once")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for range 101 {
		if typ, cqs := next(); typ != abi.MsgCQEvent || len(cqs) != 1 || cqs[0] != 7 {
			t.Fatalf("%v %v", typ, cqs)
		}
	}

	// Nobody reads: the stream is full, perhaps in the middle of a message, and the rest waits.
	const events = 3000
	for n := range uint32(events) {
		say(1000 + n)
	}
	o.answer(5, &abi.Heartbeat{})
	seen, answered := map[uint32]int{}, false
	for len(seen) < events || !answered {
		typ, cqs := next()
		answered = answered || typ == abi.MsgHeartbeat
		for _, n := range cqs {
			seen[n]++
		}
	}
	for n, count := range seen {
		if count != 1 || n < 1000 || n >= 1000+events {
			t.Fatalf("CQ %d heard of %d times", n, count)
		}
	}

	// A stream that is gone takes nothing.
	gone, other := socketPair(t)
	d := newDirect(gone)
	_ = other.Close()
	if n := d.write([]byte{1}); n != 0 {
		t.Errorf("%d bytes taken by nobody", n)
	}
	_ = gone.Close()
	if n := d.write([]byte{1}); n != 0 {
		t.Errorf("%d bytes taken by a closed socket", n)
	}
	if p, q := net.Pipe(); newDirect(p) != nil || newDirect(q) != nil {
		t.Error("a pipe in memory is not a socket")
	}
}

// TestNoEventIsLostForASlowGuest checks that a guest that takes no events for a long time gets all
// of them in the end. (DEV-205)
func TestNoEventIsLostForASlowGuest(t *testing.T) {
	const many = 3000
	o := newOutbox()
	for round := range 3 {
		for n := range uint32(many) {
			o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: n, Status: uint32(round)})
		}
	}
	if n := o.Untaken(); n != many {
		t.Errorf("%d events kept", n)
	}
	for range 3 {
		for cqn := range uint32(3000) {
			o.CQEvent(cqn)
		}
	}
	b, last := o.next(nil)
	if last {
		t.Error("ended")
	}
	r := strings.NewReader(string(b))
	buf := make([]byte, abi.MaxMessage)
	var cqs, events int
	for r.Len() > 0 {
		h, body, err := abi.ReadMessage(r, buf)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Type {
		case abi.MsgCQEvent:
			cqs += len(body) / 4
		case abi.MsgAsyncEvent:
			events++
		}
	}
	if cqs != 3000 || events != many {
		t.Errorf("%d CQ numbers and %d events came out", cqs, events)
	}
}

// pieces is a session that records each write.
type pieces struct {
	queues.Session
	list [][]byte
}

func (p *pieces) Write(b []byte) (int, error) {
	p.list = append(p.list, bytes.Clone(b))
	return len(b), nil
}

// TestMessagesInPiecesLoseNoByte checks that messages go to the driver whole or, with a seed, in
// many small pieces, without losing a byte.
func TestMessagesInPiecesLoseNoByte(t *testing.T) {
	message := make([]byte, 1000)
	for i := range message {
		message[i] = byte(i * 7)
	}
	for _, seed := range []uint64{0, 1} {
		var p pieces
		if err := send(&p, message, seed); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.Join(p.list, nil), message) {
			t.Errorf("seed %d: other bytes arrive", seed)
		}
		if seed == 0 && len(p.list) != 1 || seed != 0 && len(p.list) < 1000/40 {
			t.Errorf("seed %d: %d pieces", seed, len(p.list))
		}
	}
}

// messages decodes the output of an outbox: the types of messages, and the CQ numbers in each.
func messages(t *testing.T, b []byte) (types []abi.MsgType, cqs [][]uint32) {
	t.Helper()
	buf := make([]byte, abi.MaxMessage)
	for r := bytes.NewReader(b); r.Len() > 0; {
		h, body, err := abi.ReadMessage(r, buf)
		if err != nil {
			t.Fatal(err)
		}
		var list []uint32
		if h.Type == abi.MsgCQEvent {
			for ; len(body) >= 4; body = body[4:] {
				list = append(list, uint32(body[0])|uint32(body[1])<<8|uint32(body[2])<<16|uint32(body[3])<<24)
			}
		}
		types, cqs = append(types, h.Type), append(cqs, list)
	}
	return types, cqs
}

// TestCompletionEventsFitTheLargestMessage checks that completion events are sent in messages of up
// to the largest size, with all their numbers.
func TestCompletionEventsFitTheLargestMessage(t *testing.T) {
	const most = (abi.MaxMessage - abi.MsgHeaderSize) / 4
	for _, c := range []struct {
		events int
		want   []int
	}{{1, []int{1}}, {most, []int{most}}, {most + 1, []int{most, 1}}, {2*most + 2, []int{most, most, 2}}} {
		o := newOutbox()
		for i := range uint32(c.events) {
			o.CQEvent(0x04030201 + i)
		}
		b, last := o.next(nil)
		_, cqs := messages(t, b)
		var sizes []int
		for _, list := range cqs {
			sizes = append(sizes, len(list))
		}
		if all := slices.Concat(cqs...); !slices.Equal(sizes, c.want) || last || all[0] != 0x04030201 ||
			all[len(all)-1] != 0x04030201+uint32(c.events)-1 {
			t.Errorf("%d events: messages of %v, want %v", c.events, sizes, c.want)
		}
		if !o.empty() {
			t.Error("something is left")
		}
	}
}

// TestAnswersComeBeforeEvents checks that answers come first, then events, then the last message,
// and nothing after it.
func TestAnswersComeBeforeEvents(t *testing.T) {
	o := newOutbox()
	o.CQEvent(7)
	o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: 1})
	o.Reply(1, &abi.RegReply{})
	o.answer(2, &abi.Heartbeat{})
	o.finish(&abi.ErrorMsg{Code: abi.StatusBusy})
	o.finish(&abi.Heartbeat{}) // too late
	b, last := o.next([]byte{})
	if types, _ := messages(t, b); !last ||
		!slices.Equal(types, []abi.MsgType{abi.MsgRegReply, abi.MsgHeartbeat, abi.MsgAsyncEvent, abi.MsgCQEvent, abi.MsgError}) {
		t.Errorf("last %v, messages %v", last, types)
	}
	o = newOutbox()
	o.close()
	if b, last := o.next(nil); len(b) != 0 || !last {
		t.Errorf("%d bytes of a closed outbox, last %v", len(b), last)
	}
}

// TestAFlushWakesAWriterThatHasWork checks that a flush wakes the writer if it is waiting and there
// is something for it, and writes completion events itself where it can.
func TestAFlushWakesAWriterThatHasWork(t *testing.T) {
	event := func(o *outbox) { o.CQEvent(1) }
	for _, c := range []struct {
		what        string
		put         func(o *outbox)
		woke, wrote bool
	}{
		{"nothing", func(*outbox) {}, false, false},
		{"completion events", event, false, true},
		{"as many as one writes at once", func(o *outbox) {
			for n := range uint32(maxDirect) {
				o.CQEvent(n)
			}
		}, false, true},
		{"one more", func(o *outbox) {
			for n := range uint32(maxDirect + 1) {
				o.CQEvent(n)
			}
		}, true, false},
		{"another event", func(o *outbox) { o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal}) }, true, false},
		{"another event, too", func(o *outbox) { event(o); o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal}) }, true, false},
		{"an answer", func(o *outbox) { o.Reply(1, &abi.RegReply{}) }, true, false},
		{"an answer, too", func(o *outbox) { event(o); o.Reply(1, &abi.RegReply{}) }, true, false},
		{"a stream that has ended", func(o *outbox) { event(o); o.close() }, true, false},
		{"a stream that is to end", func(o *outbox) { event(o); o.finish(&abi.ErrorMsg{}) }, true, false},
		{"no socket", func(o *outbox) { event(o); o.direct = nil }, true, false},
		{"a writer that is at work", func(o *outbox) { event(o); o.writing = true }, false, false},
	} {
		near, far := socketPair(t)
		o := newOutbox()
		o.direct, o.writing = newDirect(near), false
		c.put(o)
		before := o.empty()
		if woke := o.Flush(); woke != c.woke {
			t.Errorf("%s: woke %v", c.what, woke)
		}
		if wrote := !before && o.empty(); wrote != c.wrote {
			t.Errorf("%s: wrote %v", c.what, wrote)
		}
		if c.wrote {
			_ = far.SetReadDeadline(time.Now().Add(patience))
			if h, _, err := abi.ReadMessage(far, make([]byte, abi.MaxMessage)); err != nil || h.Type != abi.MsgCQEvent {
				t.Errorf("%s: %v, %v", c.what, h.Type, err)
			}
		}
	}
}

// TestRequestsWaitWhileAnswersAreNotRead checks that only a limited number of requests are taken
// from a guest that does not read, until the writer has taken their answers or the stream ends.
func TestRequestsWaitWhileAnswersAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox()
		for range 2 {
			for range maxReplies - o.waiting {
				if !o.reserve() {
					t.Fatal("closed")
				}
			}
			taken := false
			go func() { taken = o.reserve() }()
			if synctest.Wait(); taken {
				t.Error("a request too many")
			}
			o.answer(1, &abi.Heartbeat{})
			o.next(nil)
			if synctest.Wait(); !taken || o.waiting != 1 {
				t.Errorf("taken %v when there is room, %d unanswered", taken, o.waiting)
			}
		}
		for range maxReplies - 1 {
			o.reserve()
		}
		refused := false
		go func() { refused = !o.reserve() }()
		synctest.Wait()
		o.close()
		if synctest.Wait(); !refused || o.reserve() {
			t.Error("a closed outbox takes requests")
		}
	})
}

// TestPiecesAreSmall checks that pieces of a message have at least one byte and at most a few, and
// that a message too short to cut is sent whole. A stream that is gone gives an error at any piece.
func TestPiecesAreSmall(t *testing.T) {
	message := bytes.Repeat([]byte("x"), 5000)
	var p pieces
	if err := send(&p, message, 7); err != nil {
		t.Fatal(err)
	}
	sizes := map[int]int{}
	for _, b := range p.list {
		sizes[len(b)]++
	}
	for n := range sizes {
		if n < 1 || n > 40 {
			t.Errorf("a piece of %d bytes", n)
		}
	}
	if len(sizes) < 30 || len(p.list[len(p.list)-1]) != 1 {
		t.Errorf("%d sizes, the last piece has %d bytes", len(sizes), len(p.list[len(p.list)-1]))
	}
	var short pieces
	if err := send(&short, message[:1], 7); err != nil || len(short.list) != 1 {
		t.Errorf("%d pieces of a byte, %v", len(short.list), err)
	}
	for _, seed := range []uint64{0, 7} {
		if err := send(deaf{}, message, seed); err == nil || !strings.Contains(err.Error(), "gone") {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestSomePiecesAreFollowedByAPause checks that there is a short pause after about one piece in
// sixteen, so that a driver sees messages interrupted at any place.
func TestSomePiecesAreFollowedByAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pieces
		start := time.Now()
		if err := send(&p, make([]byte, 20_000), 3); err != nil {
			t.Fatal(err)
		}
		if pauses := int(time.Since(start) / (50 * time.Microsecond)); pauses < len(p.list)/32 || pauses > len(p.list)/8 {
			t.Errorf("%d pauses in %d pieces", pauses, len(p.list))
		}
	})
}

// deaf is a session whose guest is gone.
type deaf struct{ queues.Session }

func (deaf) Write([]byte) (int, error) { return 0, errors.New("gone") }
