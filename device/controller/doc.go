// Package controller is what is slow about a NIC and off the packets' way: what operators ask and
// set, the memory of it, warnings, and the limits of memory.
//
//	control API ─▶ API ─▶ Shards.Of(function), Each ─▶ Shard.Ask ─▶ View, on the shard's thread
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
// Everything here may be used by any goroutine but the shards' threads. A View is valid only
// within the Ask that gave it.
package controller
