package vtime

import "math"

// Time is in nanoseconds of the owner's monotonic clock. It is an alias: times and durations are
// added and compared as numbers.
type Time = int64

// Never is the deadline of something that has none. It is later than every time.
const Never Time = math.MaxInt64

// LongAgo is before every time, and its difference to any time of a run fits Time.
const LongAgo Time = math.MinInt64 / 2
