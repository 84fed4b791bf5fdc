package shard

import (
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/falcon"
)

// reading is the reading of what strangers send.
type reading struct {
	drops *dropCounts
	log   *loglimit.Log
}

// survive is deferred around the reading of one frame or message. One that finds a fault in the
// code that reads it is counted and told, and the NIC goes on: nobody ends it with what he sends.
// Only what keeps nothing between frames is read under it; an engine that failed halfway could not
// be trusted.
func (r *reading) survive(now falcon.Time, what string, frame []byte) {
	if v := recover(); v != nil {
		r.drops.count(dropPanic)
		r.log.Panicked(now, what, v, frame)
	}
}
