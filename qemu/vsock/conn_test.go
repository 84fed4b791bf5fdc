package vsock

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// accepted is a flow from port 5 of the guest to port 7, whose packets are looked at by hand.
func accepted(t *testing.T, room, slots int, credit uint32) (*Transport, *wire, *Conn) {
	t.Helper()
	host, w := device(t, room, slots)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	h := fromGuest(OpRequest, 5, 7)
	h.BufAlloc = credit
	inject(host, h, nil)
	if r := w.header(t); r.Op != OpResponse {
		t.Fatalf("%+v", r)
	}
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return host, w, c
}

// ops takes the packets that were sent, by what they are.
func (w *wire) ops(t *testing.T) (list []Op) {
	t.Helper()
	for len(w.packets) > 0 {
		list = append(list, w.header(t).Op)
	}
	return list
}

// TestCreditIsToldAfterAQuarter: a peer hears that there is room again when a quarter of the buffer
// was read since the last packet, which told it too; and when it asks.
func TestCreditIsToldAfterAQuarter(t *testing.T) {
	host, w, c := accepted(t, 3776, 16, 1<<20)
	inject(host, fromGuest(OpReadWrite, 5, 7), make([]byte, bufAlloc))
	const quarter = bufAlloc / 4
	read := uint32(0)
	take := func(n int) {
		t.Helper()
		if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		read += uint32(n)
	}
	told := func(op Op) {
		t.Helper()
		if h := w.header(t); h.Op != op || h.FwdCnt != read || h.BufAlloc != bufAlloc || len(w.packets) != 0 {
			t.Fatalf("after %d bytes: %+v, want %v", read, h, op)
		}
	}
	take(quarter - 1)
	if len(w.packets) != 0 {
		t.Fatalf("told too soon: %v", w.ops(t))
	}
	take(1)
	told(OpCreditUpdate)
	take(quarter - 1)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	told(OpReadWrite)
	take(quarter - 1)
	if len(w.packets) != 0 {
		t.Fatalf("told twice: %v", w.ops(t))
	}
	inject(host, fromGuest(OpCreditRequest, 5, 7), nil)
	told(OpCreditUpdate)
	take(quarter)
	told(OpCreditUpdate)
}

// TestDataWaitsForCredit: what waits for credit goes when there is some, whether the peer has read
// or has a larger buffer. It is asked once for each lack of credit.
func TestDataWaitsForCredit(t *testing.T) {
	host, w, c := accepted(t, 3776, 16, 0)
	update := func(buf, fwd uint32) {
		h := fromGuest(OpCreditUpdate, 5, 7)
		h.BufAlloc, h.FwdCnt = buf, fwd
		inject(host, h, nil)
	}
	expect := func(what string, want ...Header) {
		t.Helper()
		for i, op := range want {
			if h := w.header(t); h.Op != op.Op || h.Len != op.Len {
				t.Fatalf("%s: packet %d is %v of %d bytes, want %v of %d", what, i, h.Op, h.Len, op.Op, op.Len)
			}
		}
		if len(w.packets) != 0 {
			t.Fatalf("%s: %v more", what, w.ops(t))
		}
	}
	data := func(n uint32) Header { return Header{Op: OpReadWrite, Len: n} }
	ask := Header{Op: OpCreditRequest}
	write := func(text string) {
		t.Helper()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write("abcd")
	expect("no credit", ask)
	write("efgh")
	expect("no credit still")
	update(0, 0)
	expect("nothing new")
	update(3, 0)
	expect("a larger buffer", data(3), ask)
	update(3, 2)
	expect("two bytes read", data(2), ask)
	update(4, 3)
	expect("both", data(2), ask)
	update(100, 7)
	expect("enough", data(1))
	write("i")
	expect("some is left", data(1))
	update(2, 9)
	write("jk")
	expect("just enough", data(2))
	update(2, 9) // it has read nothing
	write("l")
	expect("none again", ask)
}

// TestImpossiblePacketEndsItsFlow: a packet that its flow cannot have ends it, and the peer hears
// of that.
func TestImpossiblePacketEndsItsFlow(t *testing.T) {
	for name, send := range map[string]func(host *Transport){
		"data in a request for credit": func(host *Transport) { inject(host, fromGuest(OpCreditRequest, 5, 7), []byte("x")) },
		"data in a shutdown":           func(host *Transport) { inject(host, fromGuest(OpShutdown, 5, 7), []byte("x")) },
		"a response":                   func(host *Transport) { inject(host, fromGuest(OpResponse, 5, 7), nil) },
		"a request":                    func(host *Transport) { inject(host, fromGuest(OpRequest, 5, 7), nil) },
		"an unknown operation":         func(host *Transport) { inject(host, fromGuest(OpCreditRequest+1, 5, 7), nil) },
		"data behind the last": func(host *Transport) {
			h := fromGuest(OpShutdown, 5, 7)
			h.Flags = ShutdownSend
			inject(host, h, nil)
			inject(host, fromGuest(OpReadWrite, 5, 7), []byte("x"))
		},
	} {
		host, w, c := accepted(t, 3776, 16, bufAlloc)
		send(host)
		if got := w.ops(t); !slices.Equal(got, []Op{OpReset}) || len(host.flows) != 0 {
			t.Errorf("%s: answered %v, %d flows", name, got, len(host.flows))
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A flow that is not open yet has no data, either.
	host, w := device(t, 3776, 16)
	done := make(chan error, 1)
	go func() {
		_, err := host.Dial(1, time.Minute)
		done <- err
	}()
	h, err := ParseHeader(<-w.packets)
	if err != nil {
		t.Fatal(err)
	}
	inject(host, fromGuest(OpReadWrite, 1, h.SrcPort), []byte("x"))
	if err := <-done; !errors.Is(err, syscall.EPROTO) {
		t.Errorf("data before the response: %v", err)
	}
}

// TestOneDirectionIsShut: a peer that sends no more is still sent to, what waits included; one that
// receives no more is read from, and is sent nothing. With both the flow is over.
func TestOneDirectionIsShut(t *testing.T) {
	for _, flags := range []uint32{0, 4, ShutdownSend, ShutdownReceive} {
		host, w, c := accepted(t, 3776, 16, 0)
		if _, err := c.Write([]byte("waits")); err != nil {
			t.Fatal(err)
		}
		h := fromGuest(OpReadWrite, 5, 7)
		h.BufAlloc = 0
		inject(host, h, []byte("came"))
		w.ops(t)
		h.Op, h.Flags = OpShutdown, flags
		inject(host, h, nil)
		inject(host, fromGuest(OpCreditUpdate, 5, 7), nil)
		sent := w.ops(t)
		if receives := flags&ShutdownReceive == 0; slices.Contains(sent, OpReadWrite) != receives {
			t.Errorf("flags %d: sent %v", flags, sent)
		}
		_, err := c.Write([]byte("more"))
		if flags&ShutdownReceive == 0 && err != nil || flags&ShutdownReceive != 0 && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("flags %d: write: %v", flags, err)
		}
		b := make([]byte, 4)
		if n, err := io.ReadFull(c, b); err != nil || string(b) != "came" {
			t.Errorf("flags %d: %q, %v", flags, b[:n], err)
		}
		want := io.EOF
		if flags&ShutdownSend == 0 { // it waits for more
			_ = c.SetReadDeadline(time.Unix(1, 0))
			want = os.ErrDeadlineExceeded
		}
		if _, err := c.Read(b); !errors.Is(err, want) {
			t.Errorf("flags %d: read: %v, want %v", flags, err, want)
		}
	}
}

// TestBothDirectionsAreShut: a peer that has shut both, at once or one after the other, is told
// that the flow is forgotten (Virtio §5.10.6.6.2).
func TestBothDirectionsAreShut(t *testing.T) {
	for _, flags := range [][]uint32{{shutdownBoth}, {ShutdownSend, ShutdownReceive}, {ShutdownReceive, ShutdownSend}, {shutdownBoth | 4}} {
		host, w, c := accepted(t, 3776, 16, bufAlloc)
		for i, f := range flags {
			if len(w.packets) != 0 {
				t.Errorf("%v: answered %v before the end", flags, w.ops(t))
			}
			h := fromGuest(OpShutdown, 5, 7)
			h.Flags = f
			inject(host, h, nil)
			if over := i == len(flags)-1; over != (len(host.flows) == 0) {
				t.Errorf("%v: after %d, %d flows", flags, i, len(host.flows))
			}
		}
		if got := w.ops(t); !slices.Equal(got, []Op{OpReset}) {
			t.Errorf("%v: answered %v", flags, got)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%v: read: %v", flags, err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Errorf("%v: written", flags)
		}
	}
}

// TestReadOfNothingDoesNotWait: a reader that asks for no bytes does not wait for any, and sees
// the end all the same.
func TestReadOfNothingDoesNotWait(t *testing.T) {
	host, _, c := accepted(t, 3776, 16, bufAlloc)
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	inject(host, fromGuest(OpReset, 5, 7), nil)
	if _, err := c.Read(nil); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}
