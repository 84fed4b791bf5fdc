// Package replay is the command vnic replay: it runs the shards of a recorded NIC again
// (device/shard.Player), and shows what is to be seen of them (state.go, trace.go), at the end, where it
// is told to stop (stop.go), or Step by Step (step.go). reduce.go makes a smaller recording of one.
//
// It opens nothing but the recording, and the files that it is told to write.
package replay
