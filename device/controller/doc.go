// Package controller runs the NIC's control plane, off the packet path: the core, which holds the
// state that all shards share; the API for operators, with the settings they make; warnings; and
// memory limits.
//
//	shard's thread                         │            the core's goroutine
//	                                       │
//	functions, keys ── calls ─▶ ShardLink ─┼─▶ Core.Step ─▶ conn.Manager ◀─▶ peers (PeerMail, messages)
//	connections, … ◀─ Orders ─ ShardLink ◀─┼──────┘         security.Keys, announcements
//
// The calls that a shard makes in a Step cross at the Step's end, and the answers arrive in a later
// Step. Neither side waits for the other, nor for a peer or guest. Queues stay bounded: each
// message is an answer, a notice that replaces the previous one, or limited by what a function may
// own.
//
//	control API ─▶ API ─▶ Shards.of(function), Each ─▶ Viewer.Ask ─▶ View, on the shard's thread
//	                │
//	                ├─▶ settings.Memory, for the next NIC
//	                └─▶ Fitter: the windows and ports that settings ask for
//
// core.go steps the core, and shardlink.go is what crosses between it and a shard. What the core decides has
// a file each: functions.go (settings, GIDs), peers.go (the one list of peers), follow.go (peers and
// moved functions of a directory), paths.go (path MTUs, signs of life), plain.go (routes of plain IP),
// news.go (what peers' links say). Operators are answered by api.go (state), operator.go (changes),
// reload.go (a configuration that is read again) and recording.go (captures and traces).
//
// The controller reaches shards by synchronous calls: Ask runs a function on the shard's thread.
// That function sees the shard as a View, by subject, and must return soon. Lists that grow with the
// guests' objects are read function by function, so that traffic continues in between.
//
// # Ownership and concurrency
//
// A Core belongs to the goroutine that runs it; tests step it in virtual time, as they step shards.
// One end of a ShardLink belongs to the shard's thread, the other to the core. Everything else here
// may be used by any goroutine except the shards' threads. A View is valid only during the Ask that
// passed it.
package controller
