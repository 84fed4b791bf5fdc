package vsock

import (
	"bytes"
	"testing"
)

// device is a host transport whose output is looked at by hand.
func device(t *testing.T, room, slots int) (*Transport, *wire) {
	t.Helper()
	host := NewTransport(HostCID, guestCID)
	w := newWire(room, slots)
	host.SetLink(w)
	t.Cleanup(host.Close)
	return host, w
}

func fromGuest(op Op, src, dst uint32) Header {
	return Header{SrcCID: guestCID, DstCID: HostCID, SrcPort: src, DstPort: dst, Type: TypeStream, Op: op, BufAlloc: bufAlloc}
}

func inject(tr *Transport, h Header, payload []byte) {
	h.Len = uint32(len(payload))
	tr.Input(append(h.Append(nil), payload...))
}

func (w *wire) header(t *testing.T) Header {
	t.Helper()
	select {
	case p := <-w.packets:
		h, err := ParseHeader(p)
		if err != nil {
			t.Fatal(err)
		}
		return h
	default:
		t.Fatal("no packet")
		return Header{}
	}
}

func TestUnknownFlowIsReset(t *testing.T) {
	host, w := device(t, 3776, 16)
	for _, op := range []Op{OpInvalid, OpResponse, OpShutdown, OpReadWrite, OpCreditUpdate, OpCreditRequest, 99} {
		inject(host, fromGuest(op, 5, 6), nil)
		if h := w.header(t); h.Op != OpReset || h.SrcPort != 6 || h.DstPort != 5 || h.DstCID != guestCID || h.SrcCID != HostCID {
			t.Errorf("%v answered by %+v", op, h)
		}
	}
	inject(host, fromGuest(OpReset, 5, 6), nil) // a reset is never answered
	if len(w.packets) != 0 {
		t.Error("a reset was answered")
	}
	h := fromGuest(OpRequest, 5, 6)
	h.Type = 2
	inject(host, h, nil)
	if r := w.header(t); r.Op != OpReset || r.Type != 2 {
		t.Errorf("seqpacket answered by %+v", r)
	}
	if st := host.Stats(); st.BadType != 1 || st.UnknownFlow != 7 || st.PacketsIn != 9 {
		t.Errorf("%+v", st)
	}
}

func TestSpoofedPacketsAreDropped(t *testing.T) {
	host, w := device(t, 3776, 16)
	if _, err := host.Listen(7); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(*Header){
		func(h *Header) { h.SrcCID = guestCID + 1 },
		func(h *Header) { h.SrcCID = HostCID },
		func(h *Header) { h.SrcCID |= 1 << 32 },
		func(h *Header) { h.DstCID = 1 },
		func(h *Header) { h.DstCID |= 1 << 40 },
	} {
		h := fromGuest(OpRequest, 5, 7)
		f(&h)
		inject(host, h, nil)
	}
	if n := host.Stats().ForeignCID; n != 5 || len(w.packets) != 0 || len(host.flows) != 0 {
		t.Errorf("%d counted, %d answered, %d flows", n, len(w.packets), len(host.flows))
	}
}

func TestMalformedPacketsAreDropped(t *testing.T) {
	host, _ := device(t, 3776, 16)
	h := fromGuest(OpReadWrite, 5, 7)
	full := h.Append(nil)
	for n := range full {
		host.Input(full[:n])
	}
	h.Len = 1
	host.Input(h.Append(nil))
	h.Len = 0xffffffff
	host.Input(h.Append(nil))
	if n := host.Stats().Malformed; n != HeaderSize+2 {
		t.Errorf("%d malformed packets counted", n)
	}
}

func TestPeerBeyondItsCreditLosesTheFlow(t *testing.T) {
	host, w := device(t, 3776, 16)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	inject(host, fromGuest(OpRequest, 5, 7), nil)
	if h := w.header(t); h.Op != OpResponse || h.BufAlloc != bufAlloc {
		t.Fatalf("%+v", h)
	}
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	inject(host, fromGuest(OpReadWrite, 5, 7), make([]byte, bufAlloc))
	if len(w.packets) != 0 {
		t.Fatal("the full credit was refused")
	}
	inject(host, fromGuest(OpReadWrite, 5, 7), make([]byte, 1))
	if h := w.header(t); h.Op != OpReset {
		t.Fatalf("%+v", h)
	}
	if host.Stats().CreditViolations != 1 || len(host.flows) != 0 {
		t.Error("not counted, or the flow is still there")
	}
	if n, err := c.Read(make([]byte, 10)); n != 10 || err != nil { // what was allowed stays readable
		t.Errorf("%d, %v", n, err)
	}
}

// TestNoCreditIsAskedForNothing: a peer without room is asked for credit once something waits for
// it, and not before.
func TestNoCreditIsAskedForNothing(t *testing.T) {
	host, w := device(t, 3776, 16)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	h := fromGuest(OpRequest, 5, 7)
	h.BufAlloc = 4
	inject(host, h, nil)
	w.header(t) // the response
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("full")); err != nil {
		t.Fatal(err)
	}
	if h := w.header(t); h.Op != OpReadWrite || h.Len != 4 {
		t.Fatalf("%+v", h)
	}
	if len(w.packets) != 0 {
		t.Fatalf("asked for credit with nothing to send: %+v", w.header(t))
	}
	if _, err := c.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if h := w.header(t); h.Op != OpCreditRequest {
		t.Errorf("%+v, want a request for credit", h)
	}
}

// TestFullLinkDoesNotStopInput floods a device whose guest offers no receive
// buffers: everything stays bounded and is answered when there is room.
func TestFullLinkDoesNotStopInput(t *testing.T) {
	host := NewTransport(HostCID, guestCID)
	t.Cleanup(host.Close)
	if _, err := host.Listen(7); err != nil {
		t.Fatal(err)
	}
	const floods = 5000
	for i := range uint32(floods) {
		inject(host, fromGuest(OpRequest, i, 7), nil)
		inject(host, fromGuest(OpReadWrite, i, 8), []byte("x"))
		inject(host, fromGuest(OpCreditRequest, 0, 7), nil)
	}
	st := host.Stats()
	if st.PacketsIn != 3*floods || len(host.flows) > maxFlows || len(host.replies) > maxReplies {
		t.Fatalf("%+v, %d flows, %d replies", st, len(host.flows), len(host.replies))
	}
	if st.RepliesDropped == 0 {
		t.Error("the reply queue took everything")
	}
	w := newWire(3776, floods)
	host.SetLink(w)
	if n := len(w.packets); n != maxReplies+maxBacklog {
		t.Errorf("%d packets waited, want %d resets and %d responses", n, maxReplies, maxBacklog)
	}
}

// TestImpossibleCreditIsHarmless has a peer whose progress is ahead of what was sent.
func TestImpossibleCreditIsHarmless(t *testing.T) {
	host, w := device(t, 3776, 16)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	h := fromGuest(OpRequest, 5, 7)
	h.BufAlloc, h.FwdCnt = 0xffffffff, 0x80000000
	inject(host, h, nil)
	w.header(t)
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	h = fromGuest(OpCreditUpdate, 5, 7)
	h.BufAlloc, h.FwdCnt = 10, 1000 // as if 1000 of 1 byte were read
	inject(host, h, nil)
	if c.peerFree() != 0 {
		t.Errorf("credit of %d bytes", c.peerFree())
	}
}

func FuzzInput(f *testing.F) {
	for op := OpInvalid; op <= OpCreditRequest; op++ {
		h := fromGuest(op, 5, 7)
		f.Add(h.Append(nil), []byte("payload"))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		host := NewTransport(HostCID, guestCID)
		defer host.Close()
		w := newWire(3776, 64)
		host.SetLink(w)
		if _, err := host.Listen(7); err != nil {
			t.Fatal(err)
		}
		h := fromGuest(OpRequest, 5, 7)
		host.Input(h.Append(nil))
		for _, p := range [][]byte{a, b, a} {
			host.Input(p)
			if parsed, err := ParseHeader(p); err == nil && !bytes.Equal(parsed.Append(nil), p[:HeaderSize]) {
				t.Fatal("header does not survive")
			}
		}
		if len(host.flows) > 4 {
			t.Fatalf("%d flows", len(host.flows))
		}
	})
}

// TestResetIsNotAnswered: a flow that its peer has reset is not reset in turn, not even by a
// listener that closes before anybody took it.
func TestResetIsNotAnswered(t *testing.T) {
	host, w := device(t, 3776, 16)
	l, err := host.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	inject(host, fromGuest(OpRequest, 5, 7), nil)
	w.header(t) // the response
	inject(host, fromGuest(OpReset, 5, 7), nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	host.Pump()
	if len(w.packets) != 0 {
		t.Errorf("the guest got %+v", w.header(t))
	}
	if len(host.flows) != 0 {
		t.Errorf("%d flows are left", len(host.flows))
	}
}
