// Package conn holds the Falcon connections of functions: their identifiers, how they are agreed
// on, opened and found, and how they end.
//
//	          each shard                                      │  once per NIC
//	                                                          │
//	driver's commands ─▶ Function ────────── Requests ────────┼▶ Manager ◀─ messages ─▶ other NICs'
//	ModifyQP to RTR   ─▶ (wiring)  ◀───── Answers, Orders ────┼─   │
//	links of datagrams ─▶   │                                 │  CIDs of each shard
//	                        ▼ Opening, Close, Drain           │
//	packets ── CID ──────▶ Table{Slot, …} ◀── events ── transport, loopback
//	                        │                                 │
//	                        └── Ended ─▶ Functions ─ Disconnect ─▶ Manager
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
// other is small structures, in order: a Request one way, an Answer or an Order back. Neither waits
// for the other. A driver's command is completed when its Answer comes (abi.Ticket); what a shard
// ends itself it closes at once and tells afterwards.
//
// Each time that a function is in service is an epoch. A reset closes all that the function has in
// its shard; Orders and Answers of an epoch before find nobody, and the Manager hears of the reset
// by a Request like any other.
//
// Nothing here reads a clock, starts a goroutine or does I/O. Keys are asked for and not known
// (KeyStore, PeerKeys).
package conn
