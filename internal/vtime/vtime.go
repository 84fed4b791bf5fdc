// Package vtime is time as the protocol rooms know it: an argument, never read from a clock.
//
//	owner's clock (the monotonic one of a shard, or that of a simulation) ─▶ now ─▶ every call
//
// A run begins somewhere near 0 and only distances mean anything. Whoever owns an engine owns the
// clock; below it nothing asks what time it is, so a run under one seed replays exactly.
package vtime

import "math"

// Time is nanoseconds of the owner's monotonic clock. It is an alias: times and durations are added
// and compared as numbers.
type Time = int64

// Never is the deadline of what has none: later than everything.
const Never Time = math.MaxInt64

// LongAgo is before everything, and its distance to any time of a run fits Time.
const LongAgo Time = math.MinInt64 / 2
