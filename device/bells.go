package device

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Bounds of what the bells of shared memory may take of a Step, so that a guest
// that rings all the time delays others by little.
const (
	bellQuantum = 16 // bells looked at in their turn, beside those that rang
	bellRecords = 64 // taken of one
)

// A guest that rings with nothing to say would keep the thread awake for nothing.
// After bellPatience such rings in a row, where an honest driver never makes two,
// its descriptor is not waited for: for bellMute, then twice as long each time.
const (
	bellPatience             = 8
	bellMute     falcon.Time = 1_000_000 // ns
	bellMuteMost falcon.Time = 128_000_000
)

// bell is the bell of one function. The shard looks at it in its turn, as at a
// send queue that is polled: records are taken without anybody ringing. Before
// the thread sleeps it is armed, and its descriptor waited for.
type bell struct {
	queues.Bell
	fn      *function
	binding *binding
	armed   bool
	broken  bool        // the guest broke its rules: the session is ending
	empty   int         // rings in a row with nothing in the ring
	muted   falcon.Time // until when the descriptor is not waited for; 0: it is
}

// bells are all that the shard looks at.
type bells struct {
	all    []*bell
	byFD   map[int]*bell
	next   int         // whose turn it is
	loose  int         // how many are not armed
	rung   []*bell     // since the last look
	unmute falcon.Time // when the first muted one is to be heard again
	wait   func(fd int, on bool) error
	buf    [bellRecords * abi.DoorbellSize]byte
}

// addBell begins to look at the bell of a function.
func (s *Shard) addBell(f *function, b *binding, q queues.Bell) error {
	t := &s.bells
	l := &bell{Bell: q, fn: f, binding: b}
	if err := t.hear(l, true); err != nil {
		return fmt.Errorf("bell of %s: %w", f.ID, err)
	}
	t.all = append(t.all, l)
	t.byFD[l.FD()] = l
	t.loose++
	return nil
}

// removeBell forgets the bell of a session, if it has one.
func (s *Shard) removeBell(b *binding) {
	t := &s.bells
	i := slices.IndexFunc(t.all, func(l *bell) bool { return l.binding == b })
	if i < 0 {
		return
	}
	l := t.all[i]
	if l.muted == 0 {
		_ = t.hear(l, false)
	}
	if !l.armed {
		t.loose--
	}
	delete(t.byFD, l.FD())
	t.all = slices.Delete(t.all, i, i+1)
	t.rung = slices.DeleteFunc(t.rung, func(r *bell) bool { return r == l })
}

// hear makes the thread wait for a bell's descriptor or not.
func (t *bells) hear(l *bell, on bool) error {
	if t.wait == nil {
		return nil
	}
	return t.wait(l.FD(), on)
}

// rang says that a descriptor became readable.
func (t *bells) rang(fd int) {
	if l := t.byFD[fd]; l != nil {
		t.rung = append(t.rung, l)
	}
}

// pollBells takes records from the bells that rang and from some others, and
// reports whether there were any.
func (s *Shard) pollBells(now falcon.Time) (found bool) {
	t := &s.bells
	if now >= t.unmute {
		t.hearAgain(now)
	}
	for _, l := range t.rung {
		if s.takeRecords(now, l) {
			found = true
		} else if l.empty++; l.empty > bellPatience && l.muted == 0 {
			s.mute(now, l)
		}
	}
	t.rung = t.rung[:0]
	for range min(len(t.all), bellQuantum) {
		if t.next >= len(t.all) {
			t.next = 0
		}
		found = s.takeRecords(now, t.all[t.next]) || found
		t.next++
	}
	return found
}

// takeRecords does what the records of one bell say.
func (s *Shard) takeRecords(now falcon.Time, l *bell) bool {
	if l.broken {
		return false
	}
	t := &s.bells
	n, err := l.Take(t.buf[:])
	if err != nil {
		l.broken = true
		l.fn.broke(1003, abi.RingBells, 0, 0, nil)
		l.binding.breach(err)
		return false
	}
	if n == 0 {
		return false
	}
	l.binding.rang = true
	if l.empty = 0; l.armed {
		l.armed = false
		t.loose++
	}
	for b := t.buf[:n]; len(b) > 0; b = b[abi.DoorbellSize:] {
		var d abi.Doorbell
		d.Unmarshal(b)
		s.counters.doorbells++
		l.fn.doorbell(now, &d)
	}
	return true
}

// armBells asks every guest to ring for its next record. It reports whether one
// has records already.
func (s *Shard) armBells() (found bool) {
	t := &s.bells
	if t.loose == 0 {
		return false
	}
	for _, l := range t.all {
		if l.armed {
			continue
		}
		records, err := l.Arm()
		if records && err == nil {
			found = true
			continue
		}
		l.armed = true
		t.loose--
		if err != nil && !l.broken {
			l.broken = true
			l.binding.breach(err)
		}
	}
	return found
}

// mute stops waiting for a bell that rings for nothing. What it has to say is
// still found in its turn.
func (s *Shard) mute(now falcon.Time, l *bell) {
	t := &s.bells
	l.muted = now + min(bellMute<<min(l.empty-bellPatience-1, 20), bellMuteMost)
	t.unmute = min(t.unmute, l.muted)
	_ = t.hear(l, false)
	s.counters.bellsMuted++
	l.fn.broke(1007, abi.RingBells, 0, 0, nil)
}

// hearAgain waits for those whose time has come.
func (t *bells) hearAgain(now falcon.Time) {
	t.unmute = never
	for _, l := range t.all {
		if l.muted != 0 && now >= l.muted && t.hear(l, true) == nil {
			l.muted = 0
		} else if l.muted != 0 {
			l.muted = max(l.muted, now+bellMute)
			t.unmute = min(t.unmute, l.muted)
		}
	}
}
