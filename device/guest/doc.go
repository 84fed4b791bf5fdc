// Package guest is the driver's side of functions: what a driver rings, asks and hears.
//
//	driver's doorbell records (shared memory) ──▶ Bells ──▶ User.Doorbell
//	completion events ──▶ EventQueues ──▶ records (shared memory) ──▶ Effects: interrupts
//
// # Ownership and concurrency
//
// What is here belongs to one shard, and to the goroutine that steps it. Nothing here does I/O: an
// interrupt to raise leaves as an Effect, which the loop around the shard carries out.
package guest
