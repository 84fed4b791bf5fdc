// Package conform is the conformance kit of the device ABI. It drives a function as a raw client,
// without the rest of guestlib, and checks the rules for devices in docs/abi. It also reports which
// rules a driver broke, as the device noticed them.
//
//	Run ──► checks (table) ──► client: stream, registers, admin queue ──► qpPair: PD, MR, CQ, two QPs of the function joined to each other
//	          │                       breaks rules on purpose where a clause says what happens then
//	          └──► Report: TAP, JSON, coverage of the clauses
//	Watch ─► what the device remembers before and after a driver ran (QueryViolation) ──► Report
//
// Each check names its clauses and begins with a new stream, so that no check depends on another.
// No driver may be using the function. The clauses that a client cannot check are in conform.go,
// with the reason. A test compares the two lists with docs/abi.
//
// The checks assume nothing about a device's implementation. They wait for required events for a
// bounded time, and for a short time to see that forbidden events do not happen.
package conform
