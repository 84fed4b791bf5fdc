// Package handover passes frames between the shards of a NIC without a lock: bounded rings for each
// pair, of which one shard is the only producer and the other the only consumer.
//
//	shard 0 ─▶ rings 0→1 ─▶ shard 1        Put, Commit ─▶ │ frame │ frame │ ─▶ Take, Done
//	shard 0 ◀─ rings 1→0 ◀─ shard 1
//
// What goes this way: frames that came from the uplink on another shard's queue, messages of
// neighbour discovery, which all shards hear, packets of connections between functions of two
// shards, and plain IP between their ports.
//
// # Ownership and concurrency
//
// An End belongs to its shard's thread. A frame is copied into the ring once, and read where it
// lies. A ring that is full takes nothing more: what was to go there is lost, as in a switch, and
// counted by who has lost it. Nothing here allocates per frame.
//
// # Fairness
//
// Frames of the uplink, packets of connections, and plain IP have rings of their own, which take
// turns when they are read. In each, a flow (the function or peer that a frame is charged to) has no
// more than it leaves free.
package handover
