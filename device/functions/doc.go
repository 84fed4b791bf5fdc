// Package functions knows which functions a NIC can have, what each is set to, and what none may be
// set to: an address or a device that another has, more than peers can be told of or credits allow.
//
//	operator (ByOperator) ─┐
//	PF (SetVF, …) ─────────┼─ Edit ─▶ Registry.Change ─▶ Change ─▶ its shard applies it ─▶ Commit
//	the NIC before ────────┘              │ Refusal                      └─ cannot: forgotten
//
// Whether a change is in order costs what the function has, however many functions there are: what
// is taken, and how much of what is limited, is kept beside the settings.
//
// # Ownership and concurrency
//
// A Registry belongs to the core of a NIC (device/controller). It is pure: it knows no shard and no
// time. Between Change and Commit nothing else is changed.
package functions
