package security

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

const (
	// lingerMost is the longest time for which packets sealed with a replaced key are accepted
	// after the peer has confirmed the new one: many round trips (Falcon §9.2.2.3 step 4).
	lingerMost = int64(time.Second)

	// perStep is the number of keys that are replaced at a time: packets wait meanwhile.
	perStep = 64
)

// rotation replaces the master key, and with it the keys of all peers, while traffic flows (Falcon
// §9.2.2.3):
//
//	rotate: new generation                                    step 1
//	replaceSome: new SPIs, accepted by all their connections  step 2
//	REKEY ▶ peer, REKEYACK ◀ peer                             step 3, falcon/cm
//	linger, then the previous SPIs end                        step 4
//	all have ended: the previous generation is retired        step 5
type rotation struct {
	every     int64 // 0: only when asked
	lingering int64 // how long a previous SPI is still accepted after the confirmation
	due       int64 // time of the next rotation; never: none is planned
	open      bool  // the previous generation is still accepted
	count     uint64
	pending   []Use     // uses whose keys are still to be replaced
	ending    []lingers // previous SPIs that will end, in order of time: all linger equally long
	unsettled int       // uses with a previous SPI
	next      int64     // time of the next Advance
}

// lingers is a key whose previous SPI ends at a time, unless another replacement changed that time.
type lingers struct {
	sa *rxSA
	at int64
}

func newRotation(every time.Duration) rotation {
	r := rotation{every: int64(every), lingering: lingerMost, due: vtime.Never, next: vtime.Never}
	if every > 0 {
		r.lingering = min(r.lingering, r.every/4)
		r.next = 0 // Advance learns the time, then plans
	}
	return r
}

// RotateEvery changes the time between two rotations, counted from now; 0: only when asked.
func (k *Keys) RotateEvery(now int64, every time.Duration) {
	r := &k.rotation
	is := newRotation(every)
	r.every, r.lingering, r.due = is.every, is.lingering, vtime.Never
	if every > 0 {
		r.due = now + r.every
	}
	r.next = now
}

// finished reports whether every peer has confirmed its new key and the old keys have ended.
func (r *rotation) finished() bool { return r.unsettled == 0 && len(r.pending) == 0 }

func (r *rotation) linger(now int64, sa *rxSA) {
	sa.dropAt = now + r.lingering
	r.ending = append(r.ending, lingers{sa, sa.dropAt})
	r.next = min(r.next, sa.dropAt)
}

// Rotate starts a rotation on request. It fails while a peer has not confirmed the last rotation:
// the packets of that peer would be lost.
func (k *Keys) Rotate(now int64) error {
	if k.rotation.open || !k.rotation.finished() {
		return ErrRotating
	}
	return k.rotate(now)
}

func (k *Keys) rotate(now int64) error {
	r := &k.rotation
	var master [32]byte
	if _, err := io.ReadFull(k.cfg.Rand, master[:]); err != nil {
		return fmt.Errorf("psp master key: %w", err)
	}
	k.db.Rotate(&master)
	r.open, r.next = true, now
	r.count++
	if r.every > 0 {
		r.due = now + r.every
	}
	r.pending = k.uses()
	k.replaceSome(now)
	return nil
}

// replaceSome replaces some of the keys of the previous generation.
func (k *Keys) replaceSome(now int64) {
	r := &k.rotation
	some := r.pending[:min(len(r.pending), perStep)]
	r.pending = r.pending[len(some):]
	for _, u := range some {
		sa := k.current[u]
		switch {
		case sa == nil || sa.generation == k.db.Generation().Current: // dropped or replaced in the meantime
		case sa.sessions.Load() == 0 && !k.cfg.Needed(u):
			k.forget(sa) // nobody uses it: it is issued anew when needed
		default:
			if err := k.replace(sa); err != nil {
				k.failed(now, u, err)
			}
		}
	}
	if len(r.pending) == 0 {
		r.pending = nil
		k.cfg.Log(now, slog.LevelInfo, "psp keys rotated", "generation", k.db.Generation().Current, "keys", len(k.current))
	}
}

// Deadline returns when Advance next has something to do.
func (k *Keys) Deadline() int64 { return k.rotation.next }

// Advance ends previous keys whose time is over, continues a rotation and starts the next one.
// While a peer has not confirmed the last rotation, the next one waits for at most one more period:
// an unreachable peer must not keep a key alive for ever.
func (k *Keys) Advance(now int64) {
	r := &k.rotation
	if r.every > 0 && r.due == vtime.Never {
		r.due = now + r.every
	}
	if len(r.pending) > 0 {
		k.replaceSome(now)
	}
	k.endLingering(now)
	due := r.due
	if !r.finished() {
		due = later(due, r.every)
	} else if r.open {
		r.open = false
		k.db.Retire()
	}
	if now >= due {
		if err := k.rotate(now); err != nil {
			k.cfg.Log(now, slog.LevelError, "psp keys not rotated", "err", err)
			r.due = now + r.every
		}
		return // next is now: look again
	}
	r.next = due
	if len(r.ending) > 0 {
		r.next = min(r.next, r.ending[0].at)
	}
	if len(r.pending) > 0 {
		r.next = now
	}
}

func (k *Keys) endLingering(now int64) {
	r := &k.rotation
	n := 0
	for ; n < len(r.ending) && now >= r.ending[n].at; n++ {
		if e := r.ending[n]; e.sa.dropAt == e.at {
			k.endPrevious(e.sa)
		}
	}
	if r.ending = r.ending[n:]; len(r.ending) == 0 {
		r.ending = nil
	}
}

// ErrRotating is returned by Rotate while the last rotation is not finished.
var ErrRotating = errors.New("the last rotation is not finished: not every peer has confirmed its new key")

func later(at, d int64) int64 {
	if at == vtime.Never {
		return vtime.Never
	}
	return at + d
}
