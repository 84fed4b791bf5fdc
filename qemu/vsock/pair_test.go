package vsock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

const guestCID = 9

// wire is a Link to another Transport: a queue of packets, delivered by its own
// goroutine when run, or by hand.
type wire struct {
	room    int // bytes per packet
	slots   int // packets it holds before Room is 0
	packets chan []byte
}

func newWire(room, slots int) *wire {
	return &wire{room: room, slots: slots, packets: make(chan []byte, slots)}
}

func (w *wire) Room() int {
	if len(w.packets) == w.slots {
		return 0
	}
	return w.room
}

func (w *wire) Put(pkt []byte) {
	if len(pkt) > w.room {
		panic(fmt.Sprintf("packet of %d bytes into room for %d", len(pkt), w.room))
	}
	w.packets <- bytes.Clone(pkt)
}

func (w *wire) Flush() {}

// carry delivers packets to a transport until stop.
func (w *wire) carry(from, to *Transport, stop chan struct{}) {
	for {
		select {
		case p := <-w.packets:
			to.Input(p)
			from.Pump()
		case <-stop:
			return
		}
	}
}

// newPair joins a host's and a guest's transport.
func newPair(t *testing.T) (host, guest *Transport) {
	t.Helper()
	host, guest = NewTransport(HostCID, guestCID), NewTransport(guestCID, HostCID)
	toGuest, toHost := newWire(3776, 128), newWire(HeaderSize+maxPayload, 64)
	stop := make(chan struct{})
	done := make(chan struct{}, 2)
	go func() { toGuest.carry(host, guest, stop); done <- struct{}{} }()
	go func() { toHost.carry(guest, host, stop); done <- struct{}{} }()
	host.SetLink(toGuest)
	guest.SetLink(toHost)
	t.Cleanup(func() {
		host.Close()
		guest.Close()
		close(stop)
		<-done
		<-done
	})
	return host, guest
}

func connect(t *testing.T, host, guest *Transport) (hc, gc *Conn) {
	t.Helper()
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if gc, err = guest.Dial(7, time.Minute); err != nil {
		t.Fatal(err)
	}
	if hc, err = l.AcceptConn(); err != nil {
		t.Fatal(err)
	}
	return hc, gc
}

func TestFlowIsANetConn(t *testing.T) {
	host, guest := newPair(t)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = guest.Dial(7, time.Minute); err != nil {
			return nil, nil, nil, err
		}
		c2, err = l.Accept()
		return c1, c2, func() { c1.Close(); c2.Close() }, err
	})
	// All flows end by the peer's reset, none by the 8 s timer.
	for _, tr := range []*Transport{host, guest} {
		for left := 1; left > 0; {
			tr.Locked(func() { left = len(tr.flows) })
		}
	}
}

func TestListenerAcceptsAndCloses(t *testing.T) {
	host, guest := newPair(t)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Listen(7); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
	if _, err := guest.Dial(8, time.Minute); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial without listener: %v", err)
	}
	c, err := guest.Dial(7, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("flow nobody accepted: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

func TestWrittenDataArrivesBeforeTheEnd(t *testing.T) {
	host, guest := newPair(t)
	hc, gc := connect(t, host, guest)
	if _, err := gc.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := gc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := gc.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after CloseWrite: %v", err)
	}
	b, err := io.ReadAll(hc)
	if err != nil || string(b) != "last words" {
		t.Fatalf("%q, %v", b, err)
	}
	// The other direction is still open.
	if _, err := hc.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := hc.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(gc); err != nil || string(b) != "answer" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := gc.Write([]byte("x")); err == nil {
		t.Error("write to a closed peer succeeded")
	}
}

// TestCreditIsNeverExceeded has a writer without a reader: the sender must stop
// at the peer's buffer and go on when it is read.
func TestCreditIsNeverExceeded(t *testing.T) {
	host, guest := newPair(t)
	hc, gc := connect(t, host, guest)
	data := make([]byte, 3*bufAlloc)
	for i := range data {
		data[i] = byte(i * 7)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := gc.Write(data)
		gc.Close()
		wrote <- err
	}()
	var n int
	for n < bufAlloc { // until the receive buffer is full
		host.Locked(func() { n = hc.recv.n })
	}
	got, err := io.ReadAll(hc)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if v := host.Stats().CreditViolations; v != 0 {
		t.Errorf("%d credit violations", v)
	}
}

func TestCloseEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := NewTransport(HostCID, guestCID)
		l, err := host.Listen(7)
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(3776, 16)
		host.SetLink(w)
		request := Header{SrcCID: guestCID, DstCID: HostCID, SrcPort: 5, DstPort: 7, Type: TypeStream, Op: OpRequest, BufAlloc: 10}
		host.Input(request.Append(nil))
		c, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(make([]byte, 100)); err != nil { // more than the credit of 10
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(closeTimeout - time.Millisecond)
		synctest.Wait()
		want := []Op{OpResponse, OpReadWrite, OpCreditRequest}
		for _, op := range want {
			h, _ := ParseHeader(<-w.packets)
			if h.Op != op {
				t.Fatalf("got %v, want %v", h.Op, op)
			}
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if h, _ := ParseHeader(<-w.packets); h.Op != OpReset {
			t.Fatalf("got %v after the timeout", h.Op)
		}
		if len(host.flows) != 0 {
			t.Error("the flow is still there")
		}
	})
}

func TestDialEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := NewTransport(HostCID, guestCID)
		if _, err := host.Dial(1, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		host.Close()
	})
}
