package tcp

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// TCP is not part of what a shard does again when its tape plays (package tape): gVisor has random numbers,
// hash tables and goroutines of its own. So what TCP tells the shard is on the tape, each event and each
// packet, and what the shard tells TCP is summed. A Stack whose tape plays has no netstack: nothing that it is
// told has an effect.

// Cutter follows a stream of bytes, to tell headers from payload. It returns the length of the first piece of what
// comes next, and how many bytes at its beginning are no payload.
type Cutter func(b []byte) (n, head int)

// What the shard tells TCP, for the sum.
const (
	tellListen = iota + 1
	tellUnlisten
	tellConnect
	tellTake
	tellWrite
	tellCloseWrite
	tellClose
	tellReset
)

func (s *Stack) told(what, of, n int) {
	s.tape.OutUint(tape.Streams, uint64(what)<<56|uint64(of)<<24|uint64(n))
}

// enroll numbers a connection, for the tape.
func (s *Stack) enroll(c *Conn) {
	s.number++
	c.number = s.number
	if s.plays {
		s.conns[c.number] = c
	}
}

// passEvent passes an event through the tape; Kind is 0 if there is none.
func (s *Stack) passEvent(ev *Event) {
	t := s.tape
	if !t.Ask(tape.StreamEvent) {
		s.playEvent(ev)
		return
	}
	if t.PutUint(uint64(ev.Kind)); ev.Kind == 0 {
		return
	}
	if ev.Kind == Incoming {
		s.enroll(ev.Conn)
	}
	c, local, peer := ev.Conn, "", ""
	if c == nil {
		c = &Conn{}
	}
	if ev.Kind == Connected || ev.Kind == Incoming {
		local, peer = c.Local.String(), c.Peer.String()
	}
	t.PutUint(uint64(ev.Function))
	t.PutUint(uint64(ev.Port))
	t.PutText(ev.Why)
	t.PutUint(uint64(c.number))
	t.PutText(local)
	t.PutText(peer)
	t.PutUint(uint64(max(c.MSS, 0)))
	t.PutUint(c.acked)
	if ev.Kind == Data {
		if c.cut == nil {
			c.cut = s.cut()
		}
		for b := c.in; len(b) > 0; {
			n, head := c.cut(b)
			t.PutPart(b[:n], head)
			b = b[n:]
		}
	}
	t.PutPart(nil, 0)
}

// playEvent reads what passEvent wrote.
func (s *Stack) playEvent(ev *Event) {
	t := s.tape
	*ev = Event{Kind: EventKind(t.Uint())}
	if ev.Kind == 0 {
		return
	}
	ev.Function, ev.Port, ev.Why = uint32(t.Uint()), uint16(t.Uint()), t.Text()
	if ev.Kind == Incoming {
		s.enroll(s.newStream(ev.Function).conn)
	}
	number := uint32(t.Uint())
	c := s.conns[number]
	if c == nil && ev.Kind != Unlistened && ev.Kind != Fault {
		t.Differs("TCP tells of its connection %d, which is not there", number)
	}
	local, peer, mss, acked := t.Text(), t.Text(), int(min(t.Uint(), maxPacket)), t.Uint()
	var in []byte
	for b := t.GetPart(); len(b) > 0 && len(in) < maxPacket; b = t.GetPart() {
		in = append(in, b...)
	}
	if ev.Conn = c; c == nil {
		return
	}
	if c.acked = acked; acked > c.written {
		t.Differs("the peer has %d bytes of the %d written", acked, c.written)
	}
	switch ev.Kind {
	case Connected, Incoming:
		c.Local, _ = netip.ParseAddrPort(local)
		c.Peer, _ = netip.ParseAddrPort(peer)
		c.MSS = mss
	case Data:
		c.in, c.kept = in, false
	case Lost, Closed:
		delete(s.conns, number)
		delete(s.streams, c.st)
	}
}

// passPacket passes a packet that a function sends, of n bytes in b; 0: there is none.
func (s *Stack) passPacket(b []byte, n int, d Departure) (int, Departure) {
	t := s.tape
	if t.Ask(tape.StreamPacket) {
		if t.PutUint(uint64(n)); n > 0 {
			t.PutUint(uint64(d.Function))
			t.PutUint(uint64(d.Segments))
			t.PutUint(uint64(d.Segment))
			unsummed := uint64(0)
			if d.Unsummed {
				unsummed = 1
			}
			t.PutUint(unsummed)
			t.PutPart(b[:n], s.head(b[:n]))
		}
		return n, d
	}
	if t.Uint() == 0 {
		return 0, Departure{}
	}
	d = Departure{Function: uint32(t.Uint()), Segments: int(t.Uint()), Segment: int(t.Uint()), Unsummed: t.Uint() != 0}
	if n := copy(b, t.GetPart()); n > 0 && min(d.Segments, d.Segment) >= 0 && max(d.Segments, d.Segment) <= maxPacket {
		return n, d
	}
	t.Differs("TCP sends a packet of %d segments of %d bytes", d.Segments, d.Segment)
	return 0, d
}
