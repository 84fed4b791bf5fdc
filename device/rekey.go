package device

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

const (
	never = math.MaxInt64

	// lingerMost is how long packets sealed with a key that was replaced are
	// still accepted after the peer has confirmed the new one: many round
	// trips (Falcon §9.2.2.3 step 4).
	lingerMost = falcon.Time(time.Second)
)

// rotation replaces the master key, and with it the keys of all peers, while
// traffic flows (Falcon §9.2.2.3):
//
//	rotate: new generation, new SPIs, guards updated    steps 1, 2
//	REKEY ▶ peer, REKEYACK ◀ peer                       step 3, falcon/cm
//	linger, then the previous SPIs end                  step 4
//	all have ended: the previous generation is retired  step 5
type rotation struct {
	rand   io.Reader
	every  falcon.Time // 0: only when asked
	linger falcon.Time
	due    falcon.Time // of the next one; never: none is planned
	open   bool        // the previous generation is still accepted
	count  uint64
	next   falcon.Time // something is to be done
}

func newRotation(rand io.Reader, every time.Duration) rotation {
	r := rotation{rand: rand, every: falcon.Time(every), linger: lingerMost, due: never, next: never}
	if every > 0 {
		r.linger = min(r.linger, r.every/4)
		r.next = 0 // learn the time, then plan
	}
	return r
}

var errRotating = errors.New("the last rotation is not finished: not every peer has confirmed its new key")

// rotateKeys begins a rotation on request. It is refused while a peer has not
// confirmed the last one: with one more its packets would be lost.
func (s *Shard) rotateKeys(now falcon.Time) error {
	if s.rotation.open || s.rxSAs.unsettled() > 0 {
		return errRotating
	}
	return s.rotate(now)
}

func (s *Shard) rotate(now falcon.Time) error {
	r := &s.rotation
	var master [32]byte
	if _, err := io.ReadFull(r.rand, master[:]); err != nil {
		return fmt.Errorf("psp master key: %w", err)
	}
	s.rxSAs.db.Rotate(&master)
	r.open, r.next = true, now
	r.count++
	if r.every > 0 {
		r.due = now + r.every
	}
	for _, k := range s.rxSAs.keys() {
		if !s.cm.Reachable(k.peer) && !s.receivesOn(k) {
			s.rxSAs.forget(k) // nobody to tell, nothing to protect: issued anew when needed
			continue
		}
		if err := s.rekey(now, k); err != nil {
			s.log.line(now, slog.LevelError, "key not replaced", "peer", k.peer, "tenant", k.tenant, "err", err)
		}
	}
	s.log.line(now, slog.LevelInfo, "psp keys rotated", "generation", s.rxSAs.db.Generation().Current, "keys", len(s.rxSAs.current))
	return nil
}

// receivesOn says whether a connection is open that k protects, or a port has a tunnel.
func (s *Shard) receivesOn(k saKey) bool {
	if k.class == cm.ClassGateway {
		return s.plain.gw.Tunnel(k.peer, k.tenant) != nil
	}
	found := false
	s.eachProtected(k, func(*connKeys) { found = true })
	return found
}

// rekey gives the peer a new key for one use (Falcon §9.2.2.3 steps 2 and 3).
// What it sealed with the old one goes on being accepted.
func (s *Shard) rekey(now falcon.Time, k saKey) error {
	sa := s.rxSAs.current[k]
	older := sa.previous
	previous := sa.sa.SPI
	if err := s.rxSAs.issue(sa, k); err != nil {
		return err
	}
	s.rxSAs.db.Forget(older)
	sa.previous, sa.dropAt = previous, never
	s.eachProtected(k, func(c *connKeys) { c.guard.Rekey(sa.sa.SPI, sa.generation) })
	return s.cm.Rekey(k.peer, k.tenant, k.class, sa.sa)
}

// keyOutput carries out what the connection manager says about keys.
func (s *Shard) keyOutput(now falcon.Time, o *cm.Output) {
	k := saKey{o.Peer, o.Tenant, o.Class}
	sa := s.rxSAs.current[k]
	switch o.Kind {
	case cm.OutRekey:
		if k.class == cm.ClassGateway {
			s.tunnelKey(now, k, o.SA)
			return
		}
		if tx := s.txSAs.current[k]; tx != nil {
			if err := s.txSAs.renew(tx, o.SA); err != nil {
				s.log.line(now, slog.LevelError, "new key not usable", "peer", k.peer, "tenant", k.tenant, "err", err)
			}
		}
	case cm.OutRekeyed:
		if sa != nil && sa.sa.SPI == o.SA.SPI && sa.previous != 0 {
			sa.dropAt = now + s.rotation.linger
			s.rotation.next = min(s.rotation.next, sa.dropAt)
			s.peerTime(k, o.Time)
		}
	case cm.OutRekeyWanted:
		if err := s.giveKey(now, k, o.SA.SPI); err != nil {
			s.log.line(now, slog.LevelError, "key not replaced", "peer", k.peer, "tenant", k.tenant, "err", err)
		}
	}
}

// giveKey answers a peer that has used up the key of this SPI, or has none.
func (s *Shard) giveKey(now falcon.Time, k saKey, used uint32) error {
	sa := s.rxSAs.current[k]
	if sa == nil || used == 0 {
		sa, err := s.rxSAs.get(k)
		if err != nil {
			return err
		}
		return s.cm.Rekey(k.peer, k.tenant, k.class, sa.sa)
	}
	if sa.sa.SPI != used || sa.previous != 0 {
		return nil // has been replaced, or was just now; a peer that still wants one asks again
	}
	return s.rekey(now, k)
}

// peerTime tells the guards what the peer's clock was a moment ago (Falcon
// §9.2.2.2).
func (s *Shard) peerTime(k saKey, ps uint64) {
	s.eachProtected(k, func(c *connKeys) { c.guard.AdvanceRemoteTime(ps) })
}

// advanceKeys ends previous keys whose time is over and begins the next
// rotation. That waits while a peer has not confirmed the last one, for one
// more period at most: an unreachable peer must not keep a key alive for ever.
func (s *Shard) advanceKeys(now falcon.Time) {
	r := &s.rotation
	if r.every > 0 && r.due == never {
		r.due = now + r.every
	}
	r.next = never
	for k, sa := range s.rxSAs.current {
		if sa.previous != 0 && now >= sa.dropAt {
			s.dropPrevious(k, sa)
		}
		r.next = min(r.next, sa.dropAt)
	}
	due := r.due
	if s.rxSAs.unsettled() > 0 {
		due = later(due, r.every)
	} else if r.open {
		r.open = false
		s.rxSAs.db.Retire()
	}
	if now >= due {
		if err := s.rotate(now); err != nil {
			s.log.line(now, slog.LevelError, "psp keys not rotated", "err", err)
			r.due = now + r.every
		}
		return // next is now: look again
	}
	r.next = min(r.next, due)
}

func later(at, d falcon.Time) falcon.Time {
	if at == never {
		return never
	}
	return at + d
}

// dropPrevious ends the SPI before the current one (Falcon §9.2.2.3 step 4).
func (s *Shard) dropPrevious(k saKey, sa *rxSA) {
	s.rxSAs.db.Forget(sa.previous)
	sa.previous, sa.dropAt = 0, never
	s.eachProtected(k, func(c *connKeys) { c.guard.DropPrevious() })
}

// askForKey asks the peer for another key long before the one it gave us is
// used up. The connection manager repeats it until there is one.
func (s *Shard) askForKey(tx *txSA) {
	if tx.asked || !tx.RekeyDue() {
		return
	}
	tx.asked = true
	_ = s.cm.RequestRekey(tx.key.peer, tx.key.tenant, tx.key.class, tx.SPI())
}
