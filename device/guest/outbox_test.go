package guest

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

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

// TestDirectEvents checks that completion events go straight to the stream while nothing waits, and
// otherwise through the writer (which has other output, or the guest does not read), in order and
// each once.
func TestDirectEvents(t *testing.T) {
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
	if n := testing.AllocsPerRun(100, func() {
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
		t.Error("a pipe in memory is no socket")
	}
}

// TestOutboxKeepsAll checks that a guest that takes no events for a long time gets all of them in
// the end. (DEV-205)
func TestOutboxKeepsAll(t *testing.T) {
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

// TestSplitMessages checks that messages go to the driver whole or, with a seed, in many small
// pieces, without losing a byte.
func TestSplitMessages(t *testing.T) {
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
