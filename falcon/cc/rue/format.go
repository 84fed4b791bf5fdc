package rue

import "github.com/falcon-vnic/vnic/falcon/cc"

// Type is the cause of an event.
type Type uint8

// Event types (Falcon §10.6.2.1).
const (
	TypeAck        Type = 0
	TypeNack       Type = 1
	TypeRetransmit Type = 2
)

// Event is an entry of the CC event queue (Falcon §10.6.2.1). Times are Falcon units of 24 bits.
type Event struct {
	Conn            uint32 // CID, 24 bits
	Type            Type
	T1, T2, T3, T4  uint32 // ACK and NACK: of Falcon §10.1
	RetransmitCount uint8  // retransmission: consecutive timeouts of the packet, 0..7
	Early           bool   // retransmission: early, not by timeout
	NackCode        uint8
	Hops            uint8    // forward hops, 0..15
	RxLevel         uint8    // receive buffer level of the peer, 0..31
	Metadata        uint32   // RUE Info of the acknowledgement: 22 bits of an ACK, 24 of a NACK
	IPG             uint32   // current gap, TU, 20 bits
	Acked           uint16   // packets acknowledged since the connection's last event, 0..1023
	EackDrop        bool     // EACK whose bitmaps show a loss
	Eack            bool     // EACK
	EackOwn         bool     // EACK with an out-of-window notification; in the reserved bits after eack
	Queue           uint8    // event queue, 2 bits
	State           cc.State // of the connection; PLB counters are in the reserved bits
	Opaque          uint8    // 2 bits
	ECN             uint16   // marked packets that the peer has received so far, 14 bits, wraps
	Gen             bool     // alternates with every lap of the queue
}

func (e *Event) layout(c *codec) {
	s := &e.State
	field(c, &e.Conn, 24)
	field(c, &e.Type, 2)
	field(c, &e.T1, 24)
	field(c, &e.T2, 24)
	field(c, &e.T3, 24)
	field(c, &e.T4, 24)
	field(c, &e.RetransmitCount, 3)
	flag(c, &e.Early)
	field(c, &e.NackCode, 8)
	field(c, &e.Hops, 4)
	field(c, &e.RxLevel, 5)
	field(c, &e.Metadata, 24)
	field(c, &s.Fcwnd, 21) // fraction 10, integer 11
	field(c, &e.IPG, 20)
	field(c, &s.Ncwnd, 11)
	field(c, &s.RTO, 24)
	field(c, &e.Acked, 10)
	flag(c, &e.EackDrop)
	flag(c, &e.Eack)
	flag(c, &e.EackOwn)
	c.reserved(7)
	field(c, &e.Queue, 2)
	field(c, &s.Select, 2)
	field(c, &s.FabricMarker, 24)
	field(c, &s.NICMarker, 24)
	field(c, &s.Direction, 1)
	field(c, &s.BaseDelay, 24)
	field(c, &s.Delay, 24)
	field(c, &s.RTT, 24)
	field(c, &e.Opaque, 2)
	field(c, &e.ECN, 14)
	plbLayout(c, s)
	c.reserved(107 - plbBits)
	flag(c, &e.Gen)
}

// plbBits is the number of reserved bits in both formats that hold the counters of Falcon §10.4,
// which must come back with the next event like the rest of the state.
const plbBits = 24

func plbLayout(c *codec, s *cc.State) {
	field(c, &s.PLBCongested, 10)
	field(c, &s.PLBAcked, 10)
	field(c, &s.PLBAttempts, 4)
}

// Append appends the 64 bytes of the event. Values too large for their field are cut.
func (e *Event) Append(b []byte) []byte {
	b = append(b, make([]byte, EntryLen)...)
	e.layout(&codec{b: b[len(b)-EntryLen:]})
	return b
}

// ParseEvent decodes an event. ok is false unless b is exactly one entry.
func ParseEvent(b []byte) (e Event, ok bool) {
	if len(b) != EntryLen {
		return e, false
	}
	e.layout(&codec{b: b, read: true})
	return e, true
}

// Result is an entry of the CC result queue (Falcon §10.6.2.2): the answer to one event.
type Result struct {
	Conn     uint32   // CID of the event
	Repath   bool     // randomize_path: choose another path (Falcon §10.4)
	Metadata uint32   // of the event
	IPG      uint32   // gap between packets while fcwnd is below one, TU, 20 bits
	State    cc.State // the connection's new state; Select is not returned
	Opaque   uint8    // 2 bits
}

func (r *Result) layout(c *codec) {
	s := &r.State
	field(c, &r.Conn, 24)
	flag(c, &r.Repath)
	field(c, &r.Metadata, 24)
	field(c, &s.Fcwnd, 21) // fraction 10, integer 11
	field(c, &r.IPG, 20)
	field(c, &s.Ncwnd, 11)
	field(c, &s.RTO, 24)
	field(c, &s.FabricMarker, 24)
	field(c, &s.NICMarker, 24)
	field(c, &s.Direction, 1)
	field(c, &s.BaseDelay, 24)
	field(c, &s.Delay, 24)
	field(c, &s.RTT, 24)
	field(c, &r.Opaque, 2)
	plbLayout(c, s)
	c.reserved(260 - plbBits)
}

// Append appends the 64 bytes of the result: the 508 bits of the table and 4 of padding.
func (r *Result) Append(b []byte) []byte {
	b = append(b, make([]byte, EntryLen)...)
	r.layout(&codec{b: b[len(b)-EntryLen:]})
	return b
}

// ParseResult decodes a result. ok is false unless b is exactly one entry.
func ParseResult(b []byte) (r Result, ok bool) {
	if len(b) != EntryLen {
		return r, false
	}
	r.layout(&codec{b: b, read: true})
	return r, true
}

// EntryLen is the size of an event and of a result, in bytes.
const EntryLen = 64

// codec traverses the fields of an entry and either writes or reads them, so that each format is
// described once.
type codec struct {
	b    []byte
	bit  uint
	read bool
}

// field processes the next width bits, at most 32. A value that is too large is cut.
func field[T ~uint8 | ~uint16 | ~uint32](c *codec, v *T, width uint) {
	var got uint32
	for done := uint(0); done < width; {
		i, at := c.bit>>3, c.bit&7
		n := min(8-at, width-done)
		mask := byte(1<<n - 1)
		if c.read {
			got |= uint32(c.b[i]>>at&mask) << done
		} else {
			c.b[i] |= (byte(uint32(*v)>>done) & mask) << at
		}
		c.bit += n
		done += n
	}
	if c.read {
		*v = T(got)
	}
}

// flag processes the next bit.
func flag(c *codec, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	field(c, &n, 1)
	*v = n != 0
}

// reserved skips width bits, which stay 0.
func (c *codec) reserved(width uint) { c.bit += width }
