// Package fault decides which operations of a function go wrong because an operator asked for it.
//
//	Rule ──Add──► Set ──Hit(kind, operation)──► the rule that strikes, or nil
//	                │
//	                └── counts: operations seen, hits
//
// A Set is pure: time is an argument, and its dice are a function of the rule's seed and of how
// many operations it has seen, so that a rule does the same again. What a fault does to its
// function is the device's affair.
package fault
