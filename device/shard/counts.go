package shard

// shardCounts counts successful traffic. The shard owns it.
type shardCounts struct {
	rxPackets, rxBytes uint64 // Falcon packets accepted
	txPackets, txBytes uint64 // Falcon packets sealed
	steps              uint64

	insidePackets, insideBytes uint64 // Falcon packets given to other shards
	steered                    uint64 // frames of the uplink given to other shards
}
