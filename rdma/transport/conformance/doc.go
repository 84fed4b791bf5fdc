// Package conformance is the test that every transport must pass. It tests the contract of package
// transport, case by case, between two endpoints of its own, which check every call that they get.
//
// Cases that need what a wire cannot do (Conn.Features) are left out; instead, the wire must
// refuse what they need.
//
//	Run(t, open) ─▶ case ─▶ open(options) ─▶ Pair{A, B, Step}
//	                  │
//	                  └─▶ requests at A ─▶ … ─▶ what B was asked, how A's requests ended
//
// A transport's own test opens pairs over its carrier: a network that loses and reorders by a seed,
// or a perfect connection. Time is virtual: Step does all work that is possible now and returns
// when something happens next.
package conformance
