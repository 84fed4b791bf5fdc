// Package controller is what is slow about a NIC and off the packets' way: its core, which decides
// what there is once for all shards; what operators ask and set, the memory of it, warnings, and
// the limits of memory.
//
//	shard's thread                     │            the core's goroutine
//	                                   │
//	functions, keys ─ asked ─▶ Line ───┼─▶ Core.Step ─▶ conn.Manager ◀─▶ peers (PeerMail, messages)
//	connections, … ◀─ Side ── Line ◀───┼──────┘         security.Keys, announcements
//
// What a shard asks in a Step goes over at its end, and the answers come into a later one. Neither
// side waits for the other, nor for a peer or guest: each message is an answer, news of which the
// newest counts, or bounded by what a function may have.
//
//	control API ─▶ API ─▶ Shards.of(function), Each ─▶ Shard.Ask ─▶ View, on the shard's thread
//	                │
//	                ├─▶ settings.Memory, for the next NIC
//	                └─▶ Fitter: windows and ports that functions are set to have
//
// It knows a shard by commands with replies: Ask runs a function on the shard's thread, which sees
// the shard as a View and returns soon. What grows with the guests' objects is asked function by
// function, so that traffic goes on in between.
//
// # Ownership and concurrency
//
// A Core belongs to the goroutine that runs it; tests step it in virtual time, as they do shards.
// Of a Line the shard's thread has one end and the core the other. Everything else here may be used
// by any goroutine but the shards' threads. A View is valid only within the Ask that gave it.
package controller
