package shard

import (
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/falcon"
)

// reading protects the parsing of untrusted input.
type reading struct {
	drops *dropCounts
	log   *loglimit.Log
}

// survive is deferred around the parsing of one frame or message. If that panics, survive counts
// and logs it, and the NIC goes on: nobody can end it with what they send. Only code that keeps no
// state between frames may run under it; an engine that failed halfway could not be trusted.
func (r *reading) survive(now falcon.Time, what string, frame []byte) {
	if v := recover(); v != nil {
		r.drops.count(dropPanic)
		r.log.Panicked(now, what, v, frame)
	}
}
