package shard

import "github.com/falcon-vnic/vnic/falcon"

// survive is deferred around the reading of one frame or message. One that finds a fault in the
// code that reads it is counted and told, and the NIC goes on: nobody ends it with what he sends.
// Only what keeps nothing between frames is read under it; an engine that failed halfway could not
// be trusted.
func (s *Shard) survive(now falcon.Time, what string, frame []byte) {
	if v := recover(); v != nil {
		s.drops.count(dropPanic)
		s.log.Panicked(now, what, v, frame)
	}
}
