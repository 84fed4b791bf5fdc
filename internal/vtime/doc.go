// Package vtime is time as the protocol rooms know it: an argument, never read from a clock.
//
//	owner's clock (the monotonic one of a shard, or that of a simulation) ─▶ now ─▶ every call
//
// A run begins near time 0, and only differences have a meaning. The owner of an engine owns the
// clock. Below it nothing reads a clock, so a run with one seed replays exactly.
package vtime
