package ports

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestPortIsPausedByItsRate checks that a function that has used up its rate is not read until it
// may send again, to the nanosecond. Its frames wait and do not wake the thread; other ports go on.
func TestPortIsPausedByItsRate(t *testing.T) {
	w := newWorld(t, 0, 2)
	d, start := w.devs[0], w.now
	w.ports[0].Rate.SetRate(w.now, 1_000_000) // a byte per microsecond, and a burst of 64 KiB
	d.fill(60_000, 5_536-1)
	if came := w.read(); came != "0:60000 0:5535" {
		t.Fatalf("%s came", came)
	}
	d.fill(1) // the last byte of the burst
	if came := w.read(); came != "0:1" {
		t.Fatalf("%s came", came)
	}
	d.fill(500)
	if came := w.read(); came != "" || w.set.Deadline() != start+1000 {
		t.Fatalf("%q came, and something is due at +%d ns", came, w.set.Deadline()-start)
	}
	w.devs[1].fill(60)
	if came := w.read(); came != "1:60" {
		t.Errorf("%s came", came)
	}
	w.now = start + 999
	if w.told() || w.read() != "" {
		t.Error("read too early")
	}
	w.now = start + 1000
	if came := w.read(); came != "0:500" || w.set.Deadline() != vtime.Never {
		t.Errorf("%q came, and something is due at +%d ns", came, w.set.Deadline()-start)
	}
	d.fill(60)
	if came := w.read(); came != "" || w.set.Deadline() != start+501_000 { // it is 499 bytes over
		t.Errorf("%q came, and something is due at +%d ns", came, w.set.Deadline()-start)
	}
	w.now = start + 501_000
	if came := w.read(); came != "0:60" {
		t.Errorf("%q came", came)
	}
}

// TestRestCountsForTheRate checks that bytes left in the guest's memory count for the rate like
// copied ones.
func TestRestCountsForTheRate(t *testing.T) {
	w := newWorld(t, 1, 0)
	w.ports[0].Rate.SetRate(w.now, 1_000_000)
	w.devs[0].leave(make([]byte, 64<<10), 256)
	w.read()
	w.devs[0].fill(60)
	if came := w.read(); came != "" || w.set.Deadline() != w.now+1000 {
		t.Errorf("%q came, and something is due in %d ns", came, w.set.Deadline()-w.now)
	}
}

// TestPausedGuestIsNotPolled checks that a paused guest is not polled, and is polled again after
// the pause without having signalled.
func TestPausedGuestIsNotPolled(t *testing.T) {
	w := newWorld(t, 1, 0)
	d := w.devs[0]
	w.ports[0].Rate.SetRate(w.now, 1_000_000)
	d.fill(64 << 10)
	w.read()
	d.fill(60)
	if came := w.read(); came != "" || len(w.set.polled.awake) != 0 {
		t.Fatalf("%q came", came)
	}
	if w.says(); w.set.Arm() || w.said != nil {
		t.Errorf("while it is paused it hears %q", w.said)
	}
	w.now += 1000
	if came := w.read(); came != "0:60" {
		t.Errorf("%q came", came)
	}
	if said := w.says(); !slices.Equal(said, []string{"wake pf0.vf1", "settle pf0.vf1"}) {
		t.Errorf("it heard %q", said)
	}
}

// TestPausedPortsAreReadAgainInOneTurn checks that all ports that are due are read again in one
// turn, and the others stay paused.
func TestPausedPortsAreReadAgainInOneTurn(t *testing.T) {
	w := newWorld(t, 1, 2)
	for i, rate := range []uint64{1_000_000, 1_000_000, 500_000} {
		w.ports[i].Rate.SetRate(w.now, rate)
		w.devs[i].fill(64 << 10)
	}
	w.read()
	for _, d := range w.devs {
		d.fill(60)
	}
	if came := w.read(); came != "" {
		t.Fatalf("%q came", came)
	}
	w.now += 1000
	if came := w.read(); came != "1:60 0:60" {
		t.Errorf("%q came", came)
	}
	w.now += 1000
	if came := w.read(); came != "2:60" {
		t.Errorf("%q came", came)
	}
}
