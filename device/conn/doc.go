// Package conn holds the Falcon connections of functions: their identifiers, how they are opened and
// found, and how they end.
//
// The state of one connection:
//
//	CIDs.Alloc ─▶ agreed by the connection managers ─▶ Table.Open ─▶ open ──▶ Close ──▶ CIDs.Free
//	                                                                   │        ▲
//	                               its driver ends it: Drain, ─────────┤        │ parts in peace
//	                               until nothing is under way          ▼        │ (parting.go)
//	                               the transport, or its queue pair: NextEnded ─┘
//
// A packet finds its connection by CID in one indexed load (Table.Find). The top bits of a CID name
// the shard that it is for (ShardOf).
//
// # Ownership and concurrency
//
// A Table belongs to a shard, CIDs to the connection manager; they share nothing, and what one says
// to the other is small structures: Opening, Ended. Neither reads a clock, starts a goroutine or does
// I/O. A Table asks for keys and knows nothing of them (KeyStore).
package conn
