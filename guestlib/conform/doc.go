// Package conform is the conformance kit of the device ABI: it drives a function as a raw client,
// without the rest of guestlib, and checks what docs/abi says the device does. It also tells which
// rules a driver broke, as the device saw it.
//
//	Run ──► checks (table) ──► client: stream, registers, admin queue ──► rig: PD, MR, CQ, two QPs of the function joined to each other
//	          │                       breaks rules on purpose where a clause says what happens then
//	          └──► Report: TAP, JSON, coverage of the clauses
//	Watch ─► what the device remembers before and after a driver ran (QueryViolation) ──► Report
//
// Each check names its clauses and begins with a stream of its own, so that none depends on
// another; the function must be free. What a client cannot check is in clauses.go with the reason.
// A test holds the two lists against docs/abi.
//
// The checks do not know how a device is made: they wait for what must come, for a bounded time,
// and for a moment for what must not.
package conform
