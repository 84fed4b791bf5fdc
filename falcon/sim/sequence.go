package sim

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Sequence returns the packets traced so far as a Mermaid sequence diagram, in the order of
// sending, with the time since the first. An arrow that ends in a cross is a lost packet.
func (w *World) Sequence() string {
	var b strings.Builder
	b.WriteString("sequenceDiagram\n  participant A as node 0\n  participant B as node 1\n")
	for _, s := range w.Trace {
		from, to, arrow := "A", "B", "->>"
		if s.From == 1 {
			from, to = to, from
		}
		if s.Lost {
			arrow = "-x"
		}
		fmt.Fprintf(&b, "  %s%s%s: %.1f µs %s\n", from, arrow, to, float64(s.At-w.Trace[0].At)/1e3, Describe(s.Packet))
	}
	return b.String()
}

// Describe returns a one-line description of a Falcon packet.
func Describe(p []byte) string {
	t, d := wire.Peek(p)
	if d != wire.DropNone {
		return d.String()
	}
	switch t {
	case wire.TypeBACK, wire.TypeEACK:
		a, d := wire.ParseAck(p)
		if d != wire.DropNone {
			return d.String()
		}
		s := fmt.Sprintf("%v data %d, requests %d", t, a.DataBase, a.ReqBase)
		if a.Extended {
			s += fmt.Sprintf(", received data %s, requests %s", ones(a.DataBase, a.DataRx), ones(a.ReqBase, wire.Bitmap128{Lo: a.Req}))
		}
		return s
	case wire.TypeNACK:
		n, d := wire.ParseNack(p)
		if d != wire.DropNone {
			return d.String()
		}
		return fmt.Sprintf("%v PSN %d, %v", t, n.PSN, n.Code)
	}
	h, d := wire.ParseHeader(p)
	if d != wire.DropNone {
		return d.String()
	}
	s := fmt.Sprintf("%v PSN %d RSN %d", t, h.PSN, h.RSN)
	if h.AckReq {
		s += ", AR"
	}
	return s
}

// ones lists the sequence numbers set in a bitmap, such as 301-303.
func ones(base uint32, m wire.Bitmap128) string {
	set := func(n uint32) bool { return (m.Lo>>n|m.Hi>>(n-64))&1 != 0 } // a shift by 64 or more gives 0
	if bits.OnesCount64(m.Lo)+bits.OnesCount64(m.Hi) == 0 {
		return "none"
	}
	var runs []string
	for first := range uint32(128) {
		if !set(first) || set(first-1) {
			continue
		}
		last := first
		for set(last + 1) {
			last++
		}
		run := fmt.Sprint(base + first)
		if last != first {
			run += fmt.Sprintf("-%d", base+last)
		}
		runs = append(runs, run)
	}
	return strings.Join(runs, " ")
}
