package falcon

import (
	"testing"
	"unsafe"

	"github.com/falcon-vnic/vnic/falcon/credit"
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
		{"the sender with its new packets", tx, tx + unsafe.Offsetof(c.tx.resend) - 1, 2},
		{"the receiver to its data window's base", rx + unsafe.Offsetof(c.rx.conn), rx + unsafe.Offsetof(c.rx.data), 4},
		{"its request window and the credits", rx + unsafe.Offsetof(c.rx.requests), unsafe.Offsetof(c.credits), 5},
		{"the target", target, target + unsafe.Offsetof(c.target.heldRNR), 6},
		{"the transmit windows", flight + unsafe.Offsetof(c.flight.data), flight + unsafe.Offsetof(c.flight.conn) - 1, 7},
		{"the packets in flight", flight + unsafe.Offsetof(c.flight.conn), flight + unsafe.Offsetof(c.flight.probes), 8},
		{"congestion control", flight + unsafe.Offsetof(c.flight.cc), flight + unsafe.Offsetof(c.flight.cc) + unsafe.Offsetof(c.flight.cc.lastEvent), 9},
		{"the initiator's transactions", initiator + unsafe.Offsetof(c.initiator.conn), initiator + unsafe.Offsetof(c.initiator.offered), 11},
	} {
		if first, last := (f.start+header)/64, (f.end+header)/64; first != f.line || last != f.line {
			t.Errorf("%s: lines %d to %d, want %d", f.name, first, last, f.line)
		}
	}
}

// TestConnectionsAreFoundUntilRemoved: connections are found until they are removed, however many
// there are, and the chains stay short.
func TestConnectionsAreFoundUntilRemoved(t *testing.T) {
	var table connTable
	const most = 1000
	var conns [most]Conn
	for i := range conns {
		conns[i].cfg.LocalCID = CID(7 * i)
		table.add(&conns[i])
		if table.n != i+1 || len(table.chains) < table.n || len(table.chains) > max(64, 2*table.n) {
			t.Fatalf("%d chains for %d connections", len(table.chains), table.n)
		}
	}
	for i := range conns {
		if i%3 == 0 {
			table.remove(&conns[i])
		}
	}
	for i := range conns {
		want := &conns[i]
		if i%3 == 0 {
			want = nil
		}
		if got := table.find(CID(7 * i)); got != want {
			t.Fatalf("connection %d: found %v", i, got != nil)
		}
		if table.find(CID(7*i+1)) != nil {
			t.Fatalf("found what was never added, %d", 7*i+1)
		}
	}
	if table.n != most-(most+2)/3 {
		t.Errorf("%d connections are left", table.n)
	}
}

// TestSpacingIsRandom: the numbers are those of the generator with shifts 13, 17 and 5 of
// Marsaglia, "Xorshift RNGs", §4, from its seed on.
func TestSpacingIsRandom(t *testing.T) {
	s := sender{random: 2463534242}
	for _, want := range []uint32{723471715, 2497366906, 2064144800} {
		if got := s.nextRandom(); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}

// TestCreditErrorsAreCounted: returning what was not taken is a bug of this package, and is
// counted.
func TestCreditErrorsAreCounted(t *testing.T) {
	e := NewEngine(Config{Profile: Software(), Credits: credit.New(nil, credit.NoLimit())}, nil)
	c, err := e.Open(0, ConnConfig{Protocol: 2, MTU: 1000})
	if err != nil {
		t.Fatal(err)
	}
	c.credits.returnOne(credit.NetPktRx)
	cost := credit.PushCost(1, 1)
	c.credits.release(&cost)
	if e.stats.CreditErrors != 2 || cost != (credit.Cost{}) {
		t.Errorf("%d errors counted, %v left to return", e.stats.CreditErrors, cost)
	}
}
