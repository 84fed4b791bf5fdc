package falcon

import "math"

// Time is nanoseconds of the owner's monotonic clock. The same clock drives the PSP initialisation
// vector.
type Time = int64

// never is the deadline of a timer that is not armed.
const never Time = math.MaxInt64

// longAgo is before everything, and its distance to now fits Time.
const longAgo Time = math.MinInt64 / 2

// FalconTime converts to Falcon units of 131.072 ns = 2^17 ps, 32 bits, wrapping (Falcon §10.1).
func FalconTime(ns Time) uint32 { return uint32((uint64(ns) * 1000) >> 17) }

// fromFU converts a duration in Falcon units to nanoseconds.
func fromFU(fu uint32) Time { return Time(uint64(fu) * 131072 / 1000) }
