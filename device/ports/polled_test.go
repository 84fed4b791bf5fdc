package ports

import (
	"slices"
	"strings"
	"testing"
)

// TestBusyGuestIsPolled checks that a guest that signalled a frame is polled for the next ones.
// After many polls without a frame it is asked to signal again, and is read when it does.
func TestBusyGuestIsPolled(t *testing.T) {
	w := newWorld(t, 1, 0)
	d := w.devs[0]
	hears := func(want ...string) {
		t.Helper()
		if said := w.says(); !slices.Equal(said, want) {
			t.Errorf("it heard %q, want %q", said, want)
		}
	}
	finds := func(want string) {
		t.Helper()
		if came := w.read(); came != want {
			t.Errorf("%q came, want %q", came, want)
		}
	}
	finds("")
	hears()
	d.fill(60)
	finds("0:60")
	hears("wake pf0.vf1", "settle pf0.vf1")
	for range 3 {
		for range idleLooks - 1 {
			finds("")
		}
		hears()
		d.fill(61) // just in time: it is polled as often as before, without a signal
		if w.told() {
			t.Error("it told")
		}
		finds("0:61")
		hears("settle pf0.vf1")
	}
	for range idleLooks - 1 {
		finds("")
	}
	d.hurries = true // has a frame when it is armed, so it need not signal
	finds("")
	hears()
	d.hurries = false
	finds("")
	hears("arm pf0.vf1")
	finds("")
	hears()
	d.fill(62)
	if !w.told() {
		t.Error("it did not tell")
	}
	finds("0:62")
	hears("wake pf0.vf1", "settle pf0.vf1")
	for range idleLooks - 1 {
		finds("")
	}
	hears()
	finds("") // the last poll
	hears("arm pf0.vf1")
}

// TestArmBeforeSleep checks that guests are asked to signal before the thread sleeps. It must not
// sleep while a guest has a frame, and goes on polling that guest alone.
func TestArmBeforeSleep(t *testing.T) {
	w := newWorld(t, 3, 0)
	if w.set.Arm() || w.said != nil {
		t.Errorf("guests that nobody looks at heard %q", w.said)
	}
	for _, d := range w.devs {
		d.fill(60)
	}
	w.read()
	w.says()
	w.devs[1].fill(61)
	if !w.set.Arm() {
		t.Error("the thread may sleep, and a frame waits")
	}
	if said := w.says(); !slices.Equal(said, []string{"arm pf0.vf1", "arm pf0.vf3"}) {
		t.Errorf("guests heard %q", said)
	}
	if came := w.read(); came != "1:61" {
		t.Errorf("%s came", came)
	}
	w.says()
	if w.set.Arm() {
		t.Error("the thread may not sleep, and nothing waits")
	}
	if said := w.says(); !slices.Equal(said, []string{"arm pf0.vf2"}) {
		t.Errorf("guests heard %q", said)
	}
	for i, d := range w.devs {
		d.fill(70 + i)
	}
	if came := w.read(); came != "0:70 1:71 2:72" {
		t.Errorf("%s came", came)
	}
}

// TestPolledGuestsTakeTurns checks that if not all guests can be polled in a turn, they take turns
// in order, and none is polled twice in one.
func TestPolledGuestsTakeTurns(t *testing.T) {
	guests := make([]*servedPort, 5)
	for i := range guests {
		guests[i] = &servedPort{number: int32(i)}
	}
	for _, c := range []struct{ awake, room, turns, want string }{
		{"", "..", "2", "|"},
		{"0", "..", "2", "0|0"},
		{"012", "...", "2", "012|012"},
		{"01234", "..", "5", "01|23|40|12|34"},
		{"01234", "....", "3", "0123|4012|3401"},
		{"01234", ".", "6", "0|1|2|3|4|0"},
		{"012", "", "2", "|"},
	} {
		var ps polledPorts
		for _, n := range c.awake {
			ps.awake = append(ps.awake, guests[n-'0'])
		}
		var got []string
		for range int(c.turns[0] - '0') {
			list := make([]*servedPort, len(c.room))
			text := ""
			for _, p := range list[:ps.turns(list)] {
				text += string(rune('0' + p.number))
			}
			got = append(got, text)
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s with room for %d: %s, want %s", c.awake, len(c.room), strings.Join(got, "|"), c.want)
		}
	}
}

// TestSendersBeforeReceivers checks that buffers of sent frames go back to the sender before the
// receiver sees the frames, and that each guest is notified once for any number of frames.
func TestSendersBeforeReceivers(t *testing.T) {
	w := newWorld(t, 2, 0)
	a, b := w.devs[0], w.devs[1]
	a.put(w.udp(0, w.address(1), 100))
	a.leave(w.udp(0, w.address(1), 1000), 256)
	a.leave(w.udp(0, w.address(1), 1100), 256)
	w.read()
	w.turn()
	w.says()
	w.set.Write()
	if said := w.says(); !slices.Equal(said, []string{"return pf0.vf1", "settle pf0.vf2"}) {
		t.Errorf("guests heard %q", said)
	}
	if want := []string{"142", "256+786", "256+886"}; !slices.Equal(b.wrote, want) || a.wrote != nil {
		t.Errorf("frames %q, want %q; the sender got %q", b.wrote, want, a.wrote)
	}
	if w.set.Write(); w.said != nil {
		t.Errorf("guests heard %q, and nothing happened", w.said)
	}
	b.put(w.udp(1, w.address(0), 10))
	w.read()
	w.turn()
	w.says()
	w.set.Write()
	if said := w.says(); !slices.Equal(said, []string{"settle pf0.vf1"}) || !slices.Equal(a.wrote, []string{"52"}) {
		t.Errorf("guests heard %q, %q was written", said, a.wrote)
	}
}

// TestBuffersGoBackOnceNoneIsInUse checks that a guest gets the buffers of completely copied frames
// back at once, unless earlier ones are still in use.
func TestBuffersGoBackOnceNoneIsInUse(t *testing.T) {
	w := newWorld(t, 1, 0)
	d := w.devs[0]
	d.fill(60)
	d.leave(make([]byte, 1000), 256)
	d.fill(60)
	w.read()
	if said := w.says(); !slices.Equal(said, []string{"wake pf0.vf1"}) {
		t.Errorf("it heard %q", said)
	}
	w.set.Write()
	if said := w.says(); !slices.Equal(said, []string{"return pf0.vf1"}) {
		t.Errorf("it heard %q", said)
	}
	d.fill(60)
	w.read()
	if said := w.says(); !slices.Equal(said, []string{"settle pf0.vf1"}) {
		t.Errorf("it heard %q", said)
	}
}
