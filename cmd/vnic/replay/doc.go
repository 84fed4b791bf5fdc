// Package replay is vnic replay: it runs the shards of a recorded NIC again.
//
//	FILE ─▶ record.Recording ─▶ a tape for each shard ─▶ shard.Player, event by event (replay.go)
//	                                                        │
//	     stop.go: --until, --break ◀────────────────────────┤
//	     step.go: commands of --step ◀──────────────────────┤
//	     state.go, trace.go: what vnic show and vnic trace would have shown
//	reduce.go: a smaller recording that still shows what --break names
//
// # Ownership and concurrency
//
// Everything runs on one goroutine, one shard after the other. It opens nothing but the recording, and the
// files that it is told to write.
package replay
