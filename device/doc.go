// Package device assembles one NIC and runs it: shards with their threads, guests' sessions, the
// uplink, the links to peers, the control API.
//
//	guests ─▶ guest.Stream ─▶ desk ─┐                       ┌─▶ cmlink ◀─▶ other NICs
//	                                ├─▶ shard.Shard ◀─▶ thread ◀─▶ uplink (tap.Port)
//	control API ─▶ controller.API ──┘        └─▶ ports ◀─▶ devices of functions' ports
//
// What a NIC does is in the packages below: a shard in device/shard, the thread around it in
// device/thread, the devices of ports in device/ports, what is slow and off the packets' way in
// device/controller.
//
// # Ownership and concurrency
//
// Each shard belongs to its thread. Everything else enters it through its inbox. Each session has a
// reader and a writer goroutine. A session that ends takes its function through a function-level
// reset before the guest sees the end of the stream, so that no byte of its memory is touched after
// it.
package device
