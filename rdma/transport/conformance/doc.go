// Package conformance is the test that every transport passes: the contract of package transport,
// case by case, between two endpoints of its own that hold whoever calls them to it.
//
//	Run(t, open) ─▶ case ─▶ open(options) ─▶ Pair{A, B, Step}
//	                  │
//	                  └─▶ requests at A ─▶ … ─▶ what B was asked, how A's requests ended
//
// A transport's own test opens pairs over whatever carries it: a network that loses and reorders
// under a seed, or nothing at all. Time is virtual: Step does what can be done at a moment and says
// when something happens next.
package conformance
