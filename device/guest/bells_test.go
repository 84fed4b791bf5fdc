package guest

import (
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// rings is a bell with a fixed number of records, and its driver.
type rings struct{ fd, records, taken int }

func (r *rings) FD() int            { return r.fd }
func (r *rings) Arm() (bool, error) { return r.records > 0, nil }
func (r *rings) Close()             {}

func (r *rings) Take(b []byte) (int, error) {
	if r.records == 0 {
		return 0, nil
	}
	r.records--
	clear(b[:abi.DoorbellSize])
	return abi.DoorbellSize, nil
}

func (r *rings) Doorbell(falcon.Time, *abi.Doorbell, []byte) { r.taken++ }
func (r *rings) BrokeBell(abi.Clause)                        {}
func (r *rings) Breach(error)                                {}

// TestARingOfADriverThatLeftIsIgnored checks that a ring is ignored if its driver has left since,
// and that the other bells that rang are still polled first.
func TestARingOfADriverThatLeftIsIgnored(t *testing.T) {
	b := NewBells(&effect.List{})
	all := make([]*rings, 3*bellQuantum)
	for i := range all {
		all[i] = &rings{fd: i, records: 1}
		b.Add(all[i], all[i], nil)
	}
	gone, stays := all[len(all)-2], all[len(all)-1]
	b.NoteReadable(gone.fd)
	b.NoteReadable(stays.fd)
	b.Remove(gone)
	if !b.Poll(1) || gone.taken != 0 || stays.taken != 1 {
		t.Errorf("%d records of who is gone, %d of who rang", gone.taken, stays.taken)
	}
}

// chime is a bell with a scripted driver, which records the calls to it.
type chime struct {
	fd      int
	waiting []uint32 // indices of the records in its ring
	broken  error    // returned by Take and Arm
	looks   int      // number of calls of Take
	asked   int      // number of calls of Arm
	took    []uint32
	clauses []abi.Clause
	ended   []error
}

func (c *chime) FD() int { return c.fd }
func (c *chime) Close()  {}

func (c *chime) Arm() (bool, error) {
	c.asked++
	return len(c.waiting) > 0, c.broken
}

func (c *chime) Take(b []byte) (int, error) {
	c.looks++
	if c.broken != nil {
		return 0, c.broken
	}
	n := min(len(c.waiting), len(b)/abi.DoorbellSize)
	for i, index := range c.waiting[:n] {
		(&abi.Doorbell{Kind: abi.DoorbellSQ, Index: index}).Marshal(b[i*abi.DoorbellSize:])
	}
	c.waiting = c.waiting[n:]
	return n * abi.DoorbellSize, nil
}

func (c *chime) Doorbell(_ falcon.Time, d *abi.Doorbell, raw []byte) {
	var is [abi.DoorbellSize]byte
	if d.Marshal(is[:]); string(is[:]) != string(raw) {
		c.took = append(c.took, 1<<31)
	}
	c.took = append(c.took, d.Index)
}

func (c *chime) BrokeBell(clause abi.Clause) { c.clauses = append(c.clauses, clause) }
func (c *chime) Breach(err error)            { c.ended = append(c.ended, err) }

// waits is one call of Bells.Wait.
type waits struct {
	descriptor int
	on         bool
}

// tower is a set of bells with a fake thread that records the calls of Wait.
type tower struct {
	*Bells
	effects effect.List
	asked   []waits
	refuse  error
}

func newTower(n int) (*tower, []*chime) {
	w := &tower{}
	w.Bells = NewBells(&w.effects)
	w.Wait = func(fd int, on bool) error {
		w.asked = append(w.asked, waits{fd, on})
		return w.refuse
	}
	var all []*chime
	for i := range n {
		c := &chime{fd: 100 + i}
		w.Add(c, c, func(err error) { c.ended = append(c.ended, err) })
		all = append(all, c)
	}
	return w, all
}

// heard runs the effects and returns the calls of Wait since the last time.
func (w *tower) heard() (asked []waits) {
	w.effects.Do()
	asked, w.asked = w.asked, nil
	return asked
}

// ring makes bells ring, and polls.
func (w *tower) ring(now falcon.Time, all ...*chime) bool {
	for _, c := range all {
		w.NoteReadable(c.fd)
	}
	return w.Poll(now)
}

// TestBellsAreVisitedInTurn checks that a poll visits a limited number of bells in turn, each once,
// even when bells are added or removed, and reports whether one of them had records.
func TestBellsAreVisitedInTurn(t *testing.T) {
	w, all := newTower(bellQuantum + 4)
	looked := func() (who []int) {
		for i, c := range all {
			for range c.looks {
				who = append(who, i)
			}
			c.looks = 0
		}
		return who
	}
	first := make([]int, bellQuantum)
	for i := range first {
		first[i] = i
	}
	all[bellQuantum].waiting = []uint32{1}
	if w.Poll(1) || !slices.Equal(looked(), first) {
		t.Error("not those in front, or one of them had a record")
	}
	if !w.Poll(2) {
		t.Error("a record was not found in its turn")
	}
	if who := looked(); !slices.Equal(who, append(slices.Clone(first[:bellQuantum-4]), bellQuantum, bellQuantum+1, bellQuantum+2, bellQuantum+3)) {
		t.Errorf("looked at %v", who)
	}
	for _, c := range all[3:] {
		w.Remove(c)
	}
	for range 2 { // when there are few bells, each is visited once
		if w.Poll(3); !slices.Equal(looked(), []int{0, 1, 2}) {
			t.Error("not each once")
		}
	}
	all[0].waiting = []uint32{2} // the first of several
	if !w.Poll(4) {
		t.Error("a record was not found")
	}
	none, _ := newTower(0)
	if none.Poll(1) || none.Arm() || none.Deadline() != never {
		t.Error("no bell rings")
	}
}

// TestAPollTakesManyRecordsOfABell checks that one poll takes many records of a bell, in order, and
// leaves the rest for the next poll.
func TestAPollTakesManyRecordsOfABell(t *testing.T) {
	w, all := newTower(1)
	var want []uint32
	for i := range uint32(bellRecords + 1) {
		want = append(want, i)
	}
	all[0].waiting = slices.Clone(want)
	if !w.Poll(1) || !slices.Equal(all[0].took, want[:bellRecords]) {
		t.Errorf("%d records were taken", len(all[0].took))
	}
	if !w.Poll(2) || !slices.Equal(all[0].took, want) || w.Poll(3) {
		t.Errorf("%d records were taken", len(all[0].took))
	}
}

// TestABellThatRingsForNothingIsMuted checks that the thread stops waiting for a guest that rings
// repeatedly without records: for a time, then twice as long each time, up to a limit. (DRV-1007)
func TestABellThatRingsForNothingIsMuted(t *testing.T) {
	w, all := newTower(2)
	c, fd := all[0], all[0].fd
	w.heard()
	now := falcon.Time(1e9)
	for range bellPatience {
		w.ring(now, c)
	}
	if w.heard() != nil || w.Muted != 0 || w.Deadline() != never {
		t.Error("there was no patience")
	}
	c.waiting = []uint32{1}
	w.ring(now, c) // it has a record after all: patience starts anew
	for range bellPatience {
		w.ring(now, c)
	}
	if w.heard() != nil || c.clauses != nil {
		t.Error("an honest ring was forgotten")
	}
	for i, mute := range []falcon.Time{1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 128e6, 128e6, 128e6} {
		w.ring(now, c)
		if !slices.Equal(w.heard(), []waits{{fd, false}}) || w.Muted != uint64(i+1) || w.Deadline() != now+mute {
			t.Fatalf("mute %d: muted %d times, until %d ns from now, want %d", i, w.Muted, w.Deadline()-now, mute)
		}
		now += mute - 1
		if w.Poll(now); w.heard() != nil {
			t.Errorf("mute %d: heard again too early", i)
		}
		now++
		if w.Poll(now); !slices.Equal(w.heard(), []waits{{fd, true}}) || w.Deadline() != never {
			t.Errorf("mute %d: not heard again", i)
		}
		if w.Poll(now); w.heard() != nil {
			t.Errorf("mute %d: heard twice", i)
		}
	}
	if len(c.clauses) != 10 || c.clauses[9] != abi.DRV1007 || c.ended != nil || all[1].clauses != nil {
		t.Errorf("clauses %v, ended %v", c.clauses, c.ended)
	}
	// Rings from before it was muted have no effect, and its records are found in turn.
	w.ring(now, c, c, c)
	if w.Muted != 11 || len(w.heard()) != 1 {
		t.Errorf("muted %d times", w.Muted)
	}
	c.waiting = []uint32{7}
	if !w.Poll(now) || c.took[len(c.took)-1] != 7 {
		t.Error("a muted bell is not looked at in its turn")
	}
}

// TestEachMutedBellIsHeardAtItsTime checks that each muted bell is unmuted at its own time.
func TestEachMutedBellIsHeardAtItsTime(t *testing.T) {
	w, all := newTower(3)
	w.heard()
	for i, at := range []falcon.Time{1000, 500, 800} {
		for range bellPatience + 1 {
			w.ring(at, all[i])
		}
	}
	w.heard()
	for _, c := range []struct {
		at, next falcon.Time
		who      int
	}{{500, 800, 1}, {800, 1000, 2}, {1000, never - bellMute, 0}} {
		if w.Deadline() != c.at+bellMute {
			t.Errorf("the next is heard at %d, want %d", w.Deadline(), c.at+bellMute)
		}
		w.Poll(c.at + bellMute)
		if asked := w.heard(); !slices.Equal(asked, []waits{{all[c.who].fd, true}}) || w.Deadline() != c.next+bellMute {
			t.Errorf("at %d: %v; the next at %d, want %d", c.at+bellMute, asked, w.Deadline(), c.next+bellMute)
		}
	}
}

// TestBellsAreArmedBeforeTheThreadSleeps checks that before the thread sleeps, each guest that has
// not been asked yet is asked to ring, and that the thread must not sleep while a bell has records.
func TestBellsAreArmedBeforeTheThreadSleeps(t *testing.T) {
	w, all := newTower(3)
	arm := func(found bool, asked ...int) {
		t.Helper()
		if w.Arm() != found {
			t.Errorf("there are records: %v", !found)
		}
		var who []int
		for i, c := range all {
			if c.asked > 0 {
				who = append(who, i)
			}
			c.asked = 0
		}
		if !slices.Equal(who, asked) {
			t.Errorf("guests %v were asked, want %v", who, asked)
		}
	}
	all[1].waiting = []uint32{1}
	arm(true, 0, 1, 2)
	arm(true, 1)
	w.Poll(1)
	arm(false, 1)
	arm(false)
	all[2].waiting = []uint32{1}
	w.Poll(2)
	w.Poll(3)
	arm(false, 2)
	w.Remove(all[2]) // armed
	all[0].waiting = []uint32{1}
	w.Poll(4)
	arm(false, 0)
	arm(false)
	all[0].waiting = []uint32{1}
	w.Poll(5)
	w.Remove(all[0]) // not armed
	arm(false)
	w.Remove(all[0]) // already removed
	all[1].waiting = []uint32{1}
	w.Poll(6)
	arm(false, 1)
}

// TestABellThatCannotBeReadEndsItsSession checks that a ring that cannot be read ends the session
// once and is not polled again, while the other bells are. (DRV-1003)
func TestABellThatCannotBeReadEndsItsSession(t *testing.T) {
	w, all := newTower(2)
	all[0].broken = errors.New("bad index")
	all[1].waiting = []uint32{1}
	if !w.Poll(1) || !slices.Equal(all[1].took, []uint32{1}) {
		t.Error("the other bell is not heard")
	}
	looks := all[0].looks
	for range 3 {
		w.ring(2, all[0])
		w.Arm()
	}
	if len(all[0].ended) != 1 || !errors.Is(all[0].ended[0], all[0].broken) ||
		!slices.Equal(all[0].clauses, []abi.Clause{abi.DRV1003}) || all[0].looks != looks {
		t.Errorf("ended %v, clauses %v, %d looks", all[0].ended, all[0].clauses, all[0].looks)
	}

	w, all = newTower(1) // it breaks the rules at the moment it is armed
	w.Poll(1)
	all[0].broken, all[0].waiting = errors.New("bad index"), []uint32{1}
	for range 2 {
		if w.Arm() || w.Poll(2) || len(all[0].ended) != 1 {
			t.Errorf("ended %v", all[0].ended)
		}
	}
}

// TestTheThreadWaitsForBellsThatAreNotMuted checks that the thread waits for the descriptors of
// present bells that are not muted, that a session is told if that fails, and that Wait may be nil.
func TestTheThreadWaitsForBellsThatAreNotMuted(t *testing.T) {
	w, all := newTower(2)
	if asked := w.heard(); !slices.Equal(asked, []waits{{100, true}, {101, true}}) {
		t.Errorf("asked %v", asked)
	}
	for range bellPatience + 1 {
		w.ring(1, all[0])
	}
	w.heard()
	w.Remove(all[0]) // muted: the thread does not wait for it
	if asked := w.heard(); asked != nil {
		t.Errorf("asked %v", asked)
	}
	w.refuse = errors.New("no such descriptor")
	w.Remove(all[1])
	if asked := w.heard(); !slices.Equal(asked, []waits{{101, false}}) || all[1].ended != nil {
		t.Errorf("asked %v, told %v", asked, all[1].ended)
	}
	w.Add(all[1], all[1], func(err error) { all[1].ended = append(all[1].ended, err) })
	if w.heard(); len(all[1].ended) != 1 || !errors.Is(all[1].ended[0], w.refuse) {
		t.Errorf("told %v", all[1].ended)
	}
	w.Wait = nil
	w.Remove(all[1])
	if len(w.effects.Waiting()) != 0 {
		t.Error("something is to be done where no thread sleeps")
	}
	if w.NoteReadable(all[1].fd); w.Poll(2) {
		t.Error("a bell that is gone rings")
	}
}
