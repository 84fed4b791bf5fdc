package vsock

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNobodyWaitsLongerThanARound has one flow with much to send and others with little: with room
// for one packet at a time nobody waits longer than one round.
func TestNobodyWaitsLongerThanARound(t *testing.T) {
	host, w := device(t, 200, 1)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	var conns []*Conn
	for i := range uint32(4) {
		inject(host, fromGuest(OpRequest, 100+i, 7), nil)
		w.header(t)
		c, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if _, err := conns[0].Write(make([]byte, sendBuf)); err != nil {
		t.Fatal(err)
	}
	for _, c := range conns[1:] {
		if _, err := c.Write(make([]byte, 400)); err != nil {
			t.Fatal(err)
		}
	}
	var order []uint32
	for range 9 {
		order = append(order, w.header(t).DstPort)
		host.Pump()
	}
	want := []uint32{100, 100, 101, 102, 103, 100, 101, 102, 103}
	if !equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestPacketsOfTheGuestAreCounted: what a guest sends is counted exactly, by kind.
func TestPacketsOfTheGuestAreCounted(t *testing.T) {
	tr, w := device(t, 3776, 16)
	l, err := tr.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inject(tr, fromGuest(OpRequest, 1000, 7), nil)
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	inject(tr, fromGuest(OpReadWrite, 1000, 7), []byte("seven!!"))
	if _, err := c.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	inject(tr, fromGuest(OpRequest, 1001, 8), nil)              // nobody listens
	inject(tr, fromGuest(OpReadWrite, 1002, 7), []byte("lost")) // no such flow
	want := Stats{PacketsIn: 4, PacketsOut: 4, BytesIn: 11, BytesOut: 6, UnknownFlow: 1, Refused: 1}
	if got := tr.Stats(); got != want || len(w.packets) != 4 {
		t.Errorf("%+v with %d packets sent\nwant %+v", got, len(w.packets), want)
	}
}

// TestDialsHavePortsOfTheirOwn: flows that this end opens have ports of their own, one after the
// other and from the first again, and none that is in use.
func TestDialsHavePortsOfTheirOwn(t *testing.T) {
	host, w := device(t, 3776, 16)
	dial := func() uint32 {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			_, err := host.Dial(1, time.Minute)
			done <- err
		}()
		h, err := ParseHeader(<-w.packets)
		if err != nil || h.Op != OpRequest || h.DstPort != 1 {
			t.Fatalf("%+v, %v", h, err)
		}
		inject(host, fromGuest(OpResponse, 1, h.SrcPort), nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return h.SrcPort
	}
	for _, want := range []uint32{1 << 30, 1<<30 + 1} {
		if got := dial(); got != want {
			t.Errorf("port %#x, want %#x", got, want)
		}
	}
	host.Locked(func() { host.nextPort = 1<<31 - 2 })
	for _, want := range []uint32{1<<31 - 2, 1<<31 - 1, 1<<30 + 2, 1<<30 + 3} {
		if got := dial(); got != want {
			t.Errorf("port %#x, want %#x", got, want)
		}
	}
}

// TestFlowsAreBounded: a peer has so many flows, whichever end opens them; there is room again when
// one ends.
func TestFlowsAreBounded(t *testing.T) {
	host, w := device(t, 3776, 16)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	open := func(port uint32) (ok bool) {
		t.Helper()
		inject(host, fromGuest(OpRequest, port, 7), nil)
		if w.header(t).Op != OpResponse {
			return false
		}
		if _, err := l.AcceptConn(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	for i := range uint32(maxFlows) {
		if !open(i) {
			t.Fatalf("flow %d is refused", i)
		}
	}
	if open(maxFlows) {
		t.Error("one more flow is accepted")
	}
	if _, err := host.Dial(1, time.Minute); err == nil || !strings.Contains(err.Error(), "more than 256 flows") {
		t.Errorf("one more flow is opened: %v", err)
	}
	inject(host, fromGuest(OpReset, 9, 7), nil)
	if !open(maxFlows) {
		t.Error("no flow is accepted in the place of another")
	}
	if st := host.Stats(); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

// TestSoManyConnectionsWait: so many connections wait for Accept; those beyond are refused and
// counted.
func TestSoManyConnectionsWait(t *testing.T) {
	host, w := device(t, 3776, maxBacklog+4)
	if _, err := host.Listen(7); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(maxBacklog + 3) {
		inject(host, fromGuest(OpRequest, i, 7), nil)
	}
	want := append(slices.Repeat([]Op{OpResponse}, maxBacklog), OpReset, OpReset, OpReset)
	if got := w.ops(t); !slices.Equal(got, want) {
		t.Errorf("answered %v", got)
	}
	if st := host.Stats(); st.Refused != 3 {
		t.Errorf("%+v", st)
	}
}

// TestSoManyResetsWait: so many resets wait for room in the link; those beyond are dropped and
// counted.
func TestSoManyResetsWait(t *testing.T) {
	host := NewTransport(HostCID, guestCID)
	t.Cleanup(host.Close)
	for i := range uint32(maxReplies + 5) {
		inject(host, fromGuest(OpShutdown, i, 7), nil)
	}
	if st := host.Stats(); st.RepliesDropped != 5 || st.UnknownFlow != maxReplies+5 {
		t.Errorf("%+v", st)
	}
	w := newWire(3776, maxReplies+5)
	host.SetLink(w)
	for i := range uint32(maxReplies) {
		if h := w.header(t); h.Op != OpReset || h.DstPort != i {
			t.Fatalf("%d: %+v", i, h)
		}
	}
	if len(w.packets) != 0 {
		t.Errorf("%d packets more", len(w.packets))
	}
}

// TestPacketNeedsMoreRoomThanItsHeader: a packet goes where there is room for more than its header,
// and has as much of the data as fits.
func TestPacketNeedsMoreRoomThanItsHeader(t *testing.T) {
	host, w, c := accepted(t, 3776, 16, 1<<20)
	narrow := newWire(HeaderSize, 16)
	host.SetLink(narrow)
	if _, err := c.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	inject(host, fromGuest(OpShutdown, 6, 7), nil) // an unknown flow
	if len(narrow.packets) != 0 {
		t.Fatalf("%v in room for a header", narrow.ops(t))
	}
	wider := newWire(HeaderSize+1, 16)
	host.SetLink(wider)
	if h := wider.header(t); h.Op != OpReset || h.DstPort != 6 {
		t.Errorf("%+v", h)
	}
	for _, want := range "abc" {
		p := <-wider.packets
		if h, err := ParseHeader(p); err != nil || h.Op != OpReadWrite || h.Len != 1 || len(p) != HeaderSize+1 || p[HeaderSize] != byte(want) {
			t.Errorf("%+v, %v: % x", h, err, p)
		}
	}
	large := newWire(1<<20, 16)
	host.SetLink(large)
	if _, err := c.Write(make([]byte, 2*maxPayload)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if h := large.header(t); h.Op != OpReadWrite || h.Len != maxPayload {
			t.Errorf("%+v", h)
		}
	}
	if len(w.packets)+len(wider.packets)+len(large.packets) != 0 {
		t.Error("packets that nobody wanted")
	}
}
