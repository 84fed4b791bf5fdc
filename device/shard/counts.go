package shard

// shardCounts counts what went well. The shard owns it.
type shardCounts struct {
	rxPackets, rxBytes uint64 // Falcon packets accepted
	txPackets, txBytes uint64 // Falcon packets sealed
	steps              uint64

	insidePackets, insideBytes uint64 // Falcon packets handed to other shards
	steered                    uint64 // frames of the uplink handed to other shards
}
