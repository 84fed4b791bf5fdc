// Package handover passes frames between the shards of a NIC without a lock. It has bounded rings
// for each pair of shards; each ring has one shard as its only producer and one as its only
// consumer.
//
//	shard 0 ─▶ rings 0→1 ─▶ shard 1        Put, Commit ─▶ │ frame │ frame │ ─▶ Take, Done
//	shard 0 ◀─ rings 1→0 ◀─ shard 1
//
// It carries frames that the uplink delivered on another shard's queue, ARP and neighbour discovery
// messages, which all shards need, packets of connections between functions of two shards, plain IP
// between their ports, and packets to multicast groups.
//
// # Ownership and concurrency
//
// An End belongs to its shard's thread. A frame is copied into the ring once, and read in place. A
// full ring takes nothing more: the frame is lost, as in a switch, and the sender counts it.
// Nothing here allocates per frame.
//
// # Fairness
//
// Frames of the uplink, packets of connections, and plain IP have separate rings, which take turns
// when they are read. In each ring, a flow (the function or peer that a frame is charged to) may
// use no more room than it leaves free.
package handover
