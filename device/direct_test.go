package device

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// TestDirectEvents: completion events go straight to the stream while nothing waits, and through
// the writer, in order and each once, when the writer has something to say, or the guest does not
// read.
func TestDirectEvents(t *testing.T) {
	near, far := socketPair(t)
	o := newOutbox()
	o.direct = newDirect(near)
	if o.cqEvent(1); len(o.cqs) != 1 {
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
		_ = far.SetReadDeadline(time.Now().Add(testTime))
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
	for deadline := time.Now().Add(testTime); !idle(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the writer does not come back")
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		o.cqEvent(7)
		if len(o.cqs) != 0 {
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
		o.cqEvent(1000 + n)
	}
	o.reply(5, &abi.Heartbeat{})
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
