// Package fault decides which operations of a function fail because an operator injected a fault.
//
//	Rule ──Add──► Set ──Hit(kind, operation)──► the rule that applies, or nil
//	                │
//	                └── counts: operations seen, hits
//
// A Set depends on its inputs alone: time is an argument, and its random choices depend only on the
// rule's seed and on the number of operations it has seen, so a rule can be repeated exactly. What
// a fault does to its function is up to the device.
package fault
