// Package conn holds the Falcon connections of functions: their identifiers, how they are agreed on,
// opened and found, and how they end.
//
//	driver's commands ─▶ Function ── requests ──▶ Manager ◀── messages ──▶ other NICs' managers
//	ModifyQP to RTR   ─▶ (wiring)  ◀── outputs ──    │
//	links of datagrams ─▶   │                      CIDs
//	                        ▼ Opening, Close, Drain
//	packets ── CID ──────▶ Table{Slot, …} ◀── events ── transport, loopback
//	                        │
//	                        └── Ended ─▶ Functions ── Disconnect ─▶ Manager
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
// There are two sides. Manager and CIDs decide, once per NIC. Table, Functions and each Function
// carry out, in each shard, beside the queue pairs that they look at. What one side says to the
// other is small structures: a cm.ConnectRequest and its like one way (Requests), a cm.Output back
// (Outputs). Today one goroutine calls both, and a queue pair connected with itself takes its CID
// from CIDs directly.
//
// Nothing here reads a clock, starts a goroutine or does I/O. Keys are asked for and not known
// (KeyStore, PeerKeys).
package conn
