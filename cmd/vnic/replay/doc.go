// Package replay is the command vnic replay: it runs the shards of a recorded NIC again
// (device/shard.Player), and shows their state where it stops.
//
// It opens nothing but the recording, and the capture that it is told to write.
package replay
