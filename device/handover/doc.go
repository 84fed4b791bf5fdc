// Package handover passes frames between the shards of a NIC without a lock: a bounded ring for
// each pair, of which one shard is the only producer and the other the only consumer.
//
//	shard 0 ─▶ ring 0→1 ─▶ shard 1        Put, Commit ─▶ │ frame │ frame │ ─▶ Next, Done
//	shard 0 ◀─ ring 1→0 ◀─ shard 1
//
// What goes this way: frames that came from the uplink on another shard's queue, messages of
// neighbour discovery, which all shards hear, packets of connections between functions of two
// shards, and plain IP between their ports.
//
// # Ownership and concurrency
//
// An End belongs to its shard's thread. A frame is copied into the ring once, and read where it
// lies. A ring that is full takes nothing more: what was to go there is lost, as in a switch, and
// counted by who has lost it. Nothing here allocates after New.
package handover
