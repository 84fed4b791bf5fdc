package inbox

import (
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestMailKeepsSomeRoom checks that an empty mail keeps its buffer only up to maxKept messages, and
// that an empty list is not posted.
func TestMailKeepsSomeRoom(t *testing.T) {
	for n, keeps := range map[int]bool{1: true, maxKept: true, maxKept + 1: false} {
		o := &owner{}
		m := NewMail(&o.box, func(*owner, vtime.Time, byte) {})
		if m.Send(nil); !o.box.Empty() {
			t.Error("nothing was posted")
		}
		m.waiting = make([]byte, 0, n)
		m.Send([]byte{1})
		if o.turn(1); (cap(m.spare) == n) != keeps || !keeps && m.spare != nil || len(m.spare) != 0 {
			t.Errorf("room for %d messages: %d are kept", n, cap(m.spare))
		}
	}
}

// TestRouse checks that only a parked owner is woken, once, and one without a thread never.
func TestRouse(t *testing.T) {
	o, woken := &owner{}, 0
	o.box.Rouse()
	o.box.WakeBy(func() { woken++ })
	if o.box.Rouse(); woken != 0 {
		t.Error("woken while awake")
	}
	o.box.Park()
	o.box.Rouse()
	if o.box.Rouse(); woken != 1 {
		t.Errorf("woken %d times", woken)
	}
	o.box.Park()
	o.box.Unpark()
	if o.box.Post(news(1)); woken != 1 {
		t.Error("woken after it had woken by itself")
	}
}
