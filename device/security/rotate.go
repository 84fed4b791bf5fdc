package security

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

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
