// Package device assembles one NIC and runs it: shards with their threads, guests' sessions, the
// uplink, the links to peers, the fleet's directory, the control API.
//
//	guests ─▶ guest.Stream ─▶ NIC ──┐                       ┌─▶ cmlink ◀─▶ other NICs
//	                                ├─▶ shard.Shard ◀─▶ thread ◀─▶ uplink (tap.Uplink)
//	control API ─▶ controller.API ──┘        └─▶ ports ◀─▶ devices of functions' ports
//
// The NIC's work is done in the packages below: a shard in device/shard, the thread around it in
// device/thread, the devices of ports in device/ports, the control plane in device/controller.
//
// # Ownership and concurrency
//
// Each shard belongs to its thread. Everything else enters it through its inbox. Each session over
// a stream has a reader and a writer goroutine. When a session ends, its function is reset before
// the guest sees the end of the stream, so no byte of the guest's memory is touched after that.
package device
