package vtime

import "math"

// Time is nanoseconds of the owner's monotonic clock. It is an alias: times and durations are added
// and compared as numbers.
type Time = int64

// Never is the deadline of what has none: later than everything.
const Never Time = math.MaxInt64

// LongAgo is before everything, and its distance to any time of a run fits Time.
const LongAgo Time = math.MinInt64 / 2
