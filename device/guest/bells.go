package guest

import (
	"math"
	"slices"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Limits of the doorbell records in shared memory that a Step takes, so that a guest that rings all
// the time delays others only a little.
const (
	bellQuantum = 16 // bells polled in their turn, in addition to those that rang
	bellRecords = 64 // records taken from one bell
)

// A guest that rings without a record would keep the thread awake for nothing. After bellPatience
// such rings in a row (an honest driver never makes two), the thread stops waiting for its
// descriptor: for bellMute, then twice as long each time.
const (
	bellPatience             = 8
	bellMute     falcon.Time = 1_000_000 // ns
	bellMuteMost falcon.Time = 128_000_000
)

// BellUser is the driver that a bell belongs to.
type BellUser interface {
	// Doorbell carries out a record. raw holds its bytes as the driver wrote them.
	Doorbell(now falcon.Time, d *abi.Doorbell, raw []byte)
	// BrokeBell records the clause of docs/abi that the driver broke by its ring.
	BrokeBell(clause abi.Clause)
	// Breach ends the driver's session: it broke the rules of shared memory.
	Breach(err error)
}

// bell is the bell of one function: a ring of doorbell records in shared memory. The shard polls it
// in its turn, like a send queue, so records are found without a ring. Before the thread sleeps, it
// arms the bell and waits for its descriptor.
type bell struct {
	queues.Bell
	user   BellUser
	failed func(error)
	armed  bool
	broken bool        // the guest broke the rules of the bell: the session is ending
	empty  int         // rings in a row with nothing in the ring
	muted  falcon.Time // time until which the thread does not wait for the descriptor; 0: it does
}

// Bells holds the bells of a shard.
type Bells struct {
	// Wait makes the shard's thread start or stop waiting for a descriptor; nil where no thread
	// sleeps. It is called as an effect.
	Wait func(fd int, on bool) error
	// Muted counts how often a bell was muted because it rang for nothing too often.
	Muted uint64

	effects *effect.List

	all     []*bell
	byFD    map[int]*bell
	next    int         // index of the next bell to poll
	unarmed int         // number of bells that are not armed
	rung    []*bell     // bells that rang since the last Poll
	unmute  falcon.Time // time at which the first muted bell is to be unmuted; never: none is muted
	buf     [bellRecords * abi.DoorbellSize]byte
	record  abi.Doorbell // a field: passed to an interface, must not be allocated per call
}

// never is a deadline that does not come.
const never falcon.Time = math.MaxInt64

// NewBells returns a set without bells.
func NewBells(effects *effect.List) *Bells {
	return &Bells{effects: effects, byFD: map[int]*bell{}, unmute: never}
}

// Deadline returns the time at which Poll is due without a ring.
func (t *Bells) Deadline() falcon.Time { return t.unmute }

// Add starts polling a bell. failed is called, as an effect, if the thread cannot wait for it.
func (t *Bells) Add(user BellUser, q queues.Bell, failed func(error)) {
	l := &bell{Bell: q, user: user, failed: failed}
	t.listen(l, true)
	t.all = append(t.all, l)
	t.byFD[l.FD()] = l
	t.unarmed++
}

// Remove removes the bell of a driver, if it has one.
func (t *Bells) Remove(user BellUser) {
	i := slices.IndexFunc(t.all, func(l *bell) bool { return l.user == user })
	if i < 0 {
		return
	}
	l := t.all[i]
	if l.muted == 0 {
		t.listen(l, false)
	}
	if !l.armed {
		t.unarmed--
	}
	delete(t.byFD, l.FD())
	t.all = slices.Delete(t.all, i, i+1)
	t.rung = slices.DeleteFunc(t.rung, func(r *bell) bool { return r == l })
}

// listen makes the thread start or stop waiting for a bell's descriptor.
func (t *Bells) listen(l *bell, on bool) {
	if t.Wait == nil {
		return
	}
	t.effects.Add(effect.Func(func() {
		if err := t.Wait(l.FD(), on); err != nil && on {
			l.failed(err)
		}
	}))
}

// NoteReadable records that a descriptor became readable.
func (t *Bells) NoteReadable(fd int) {
	if l := t.byFD[fd]; l != nil {
		t.rung = append(t.rung, l)
	}
}

// Poll takes records from the bells that rang and from a few others in turn. It reports whether
// there were any.
func (t *Bells) Poll(now falcon.Time) (found bool) {
	if now >= t.unmute {
		t.unmuteDue(now)
	}
	for _, l := range t.rung {
		if t.take(now, l) {
			found = true
		} else if l.empty++; l.empty > bellPatience && l.muted == 0 {
			t.mute(now, l)
		}
	}
	t.rung = t.rung[:0]
	for range min(len(t.all), bellQuantum) {
		if t.next >= len(t.all) {
			t.next = 0
		}
		found = t.take(now, t.all[t.next]) || found
		t.next++
	}
	return found
}

// take carries out the records of one bell.
func (t *Bells) take(now falcon.Time, l *bell) bool {
	if l.broken {
		return false
	}
	n, err := l.Take(t.buf[:])
	if err != nil {
		l.broken = true
		l.user.BrokeBell(abi.DRV1003)
		l.user.Breach(err)
		return false
	}
	if n == 0 {
		return false
	}
	if l.empty = 0; l.armed {
		l.armed = false
		t.unarmed++
	}
	for b := t.buf[:n]; len(b) > 0; b = b[abi.DoorbellSize:] {
		t.record.Unmarshal(b)
		l.user.Doorbell(now, &t.record, b[:abi.DoorbellSize])
	}
	return true
}

// Arm asks every guest to ring for its next record. It reports whether a bell has records already.
func (t *Bells) Arm() (found bool) {
	if t.unarmed == 0 {
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
		t.unarmed--
		if err != nil && !l.broken {
			l.broken = true
			l.user.Breach(err)
		}
	}
	return found
}

// mute stops waiting for a bell that rings for nothing. Poll still finds its records in turn.
func (t *Bells) mute(now falcon.Time, l *bell) {
	l.muted = now + min(bellMute<<min(l.empty-bellPatience-1, 20), bellMuteMost)
	t.unmute = min(t.unmute, l.muted)
	t.listen(l, false)
	t.Muted++
	l.user.BrokeBell(abi.DRV1007)
}

// unmuteDue unmutes the bells whose time has come.
func (t *Bells) unmuteDue(now falcon.Time) {
	t.unmute = never
	for _, l := range t.all {
		switch {
		case l.muted == 0:
		case now >= l.muted:
			l.muted = 0
			t.listen(l, true)
		default:
			t.unmute = min(t.unmute, l.muted)
		}
	}
}
