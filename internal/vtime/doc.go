// Package vtime is time as the protocol rooms know it: an argument, never read from a clock.
//
//	owner's clock (the monotonic one of a shard, or that of a simulation) ─▶ now ─▶ every call
//
// A run begins somewhere near 0 and only distances mean anything. Whoever owns an engine owns the
// clock; below it nothing asks what time it is, so a run under one seed replays exactly.
package vtime
