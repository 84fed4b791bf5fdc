package security

import (
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

// finished reports whether every peer has confirmed its new key and the old keys have ended.
func (r *rotation) finished() bool { return r.unsettled == 0 && len(r.pending) == 0 }

func (r *rotation) linger(now int64, sa *rxSA) {
	sa.dropAt = now + r.lingering
	r.ending = append(r.ending, lingers{sa, sa.dropAt})
	r.next = min(r.next, sa.dropAt)
}
