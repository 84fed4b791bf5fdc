// Package functions holds the settings of a NIC's functions, and decides which settings are
// allowed: no address or device that another function has, and no more than peers can be told of or
// credits allow.
//
//	operator (ByOperator) ─┐
//	PF (SetVF, …) ─────────┼─ Edit ─▶ Registry.Change ─▶ Change ─▶ its shard applies it ─▶ Commit
//	the NIC before ────────┘              │ Refusal                      └─ cannot: forgotten
//
// The cost of checking a change depends only on the function changed, not on the number of
// functions: what is in use, and how much of each limited resource, is kept beside the settings.
//
// # Ownership and concurrency
//
// A Registry belongs to the core of a NIC (device/controller). It knows neither shards nor time.
// Nothing else may be changed between Change and Commit.
package functions
