package rue

import "github.com/falcon-vnic/vnic/falcon/cc"

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
