package falcon

import (
	"testing"
	"unsafe"
)

// TestAPacketTouchesFewLines: what a packet needs of a connection lies in the cache lines that
// Prefetch reads.
func TestAPacketTouchesFewLines(t *testing.T) {
	var c Conn
	const header = 8 // of the allocator
	rx, target, flight := unsafe.Offsetof(c.rx), unsafe.Offsetof(c.target), unsafe.Offsetof(c.flight)
	tx, initiator := unsafe.Offsetof(c.tx), unsafe.Offsetof(c.initiator)
	for _, f := range []struct {
		name       string
		start, end uintptr
		line       uintptr
	}{
		{"what the connection is", unsafe.Offsetof(c.e), unsafe.Offsetof(c.cfg) + unsafe.Offsetof(c.cfg.Ordered), 0},
		{"the receiver to its data window's base", rx + unsafe.Offsetof(c.rx.conn), rx + unsafe.Offsetof(c.rx.data), 3},
		{"its request window and the credits", rx + unsafe.Offsetof(c.rx.requests), unsafe.Offsetof(c.credits), 4},
		{"the target", target, target + unsafe.Offsetof(c.target.heldRNR), 5},
		{"the transmit windows", flight + unsafe.Offsetof(c.flight.data), flight + unsafe.Offsetof(c.flight.conn) - 1, 6},
		{"the packets in flight", flight + unsafe.Offsetof(c.flight.conn), flight + unsafe.Offsetof(c.flight.probes), 7},
		{"the sender with its new packets", tx, tx + unsafe.Offsetof(c.tx.again) - 1, 8},
		{"the initiator's transactions", initiator + unsafe.Offsetof(c.initiator.conn), initiator + unsafe.Offsetof(c.initiator.offered), 10},
	} {
		if first, last := (f.start+header)/64, (f.end+header)/64; first != f.line || last != f.line {
			t.Errorf("%s: lines %d to %d, want %d", f.name, first, last, f.line)
		}
	}
}
