package falcon

import "github.com/falcon-vnic/vnic/internal/vtime"

// Time is in nanoseconds of the owner's monotonic clock. The same clock drives the PSP
// initialisation vector.
type Time = vtime.Time

const (
	never   = vtime.Never // the deadline of a timer that is not armed
	longAgo = vtime.LongAgo
)

// FalconTime converts to Falcon units of 131.072 ns = 2^17 ps, 32 bits, wrapping (Falcon §10.1).
func FalconTime(ns Time) uint32 { return uint32((uint64(ns) * 1000) >> 17) }

// fromFU converts a duration in Falcon units to nanoseconds.
func fromFU(fu uint32) Time { return Time(uint64(fu) * 131072 / 1000) }
