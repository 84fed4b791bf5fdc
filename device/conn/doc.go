// Package conn holds the Falcon connections of functions: it allocates their identifiers, agrees on
// them with peers, opens them, finds them for packets, and ends them.
//
//	          each shard                                      │  once per NIC
//	                                                          │
//	driver's commands ─▶ Connections ─────── Requests ────────┼▶ Manager ◀─ messages ─▶ other NICs'
//	ModifyQP to RTR   ─▶ (wiring)  ◀── Answers, Decisions ────┼─   │
//	links of datagrams ─▶   │                                 │  CIDs of each shard
//	                        ▼ Opening, Close, Drain           │
//	packets ── CID ──────▶ Table{Slot, …} ◀── events ── transport, loopback
//	                        │                                 │
//	                        └── Ended ─▶ Connector ─ Disconnect ─▶ Manager
//
// The state of one connection:
//
//	CIDs.Alloc ─▶ agreed by the connection managers ─▶ Table.Open ─▶ open ──▶ Close ──▶ CIDs.Free
//	                                                                   │        ▲
//	                               its driver ends it: Drain, ─────────┤        │ parts
//	                               until no work is in flight          ▼        │ (close.go)
//	                               the transport, or its queue pair: NextEnded ─┘
//
// A packet finds its connection by CID in one indexed load (Table.Find). The top bits of a CID name
// the shard that it is for (ShardOf).
//
// # Ownership and concurrency
//
// There are two sides. Manager and CIDs make decisions, once per NIC. Table, Connector and each
// function's Connections carry them out, in each shard, where the queue pairs are. The sides
// exchange small messages in order: a Request one way, an Answer or a Decision back. Neither side
// waits for the other. A driver's command completes when its Answer comes (abi.Ticket). If a shard
// ends a connection itself, it closes it at once and informs the Manager afterwards.
//
// Each period in which a function is in service is an epoch. A reset closes all connections of the
// function in its shard. Decisions and Answers of an earlier epoch are ignored, and the Manager
// learns of the reset by a Request like any other.
//
// Nothing here reads a clock, starts a goroutine or does I/O. Keys are requested through interfaces
// (KeyStore, PeerKeys); this package does not see them.
package conn
