// Package control carries the control messages between a driver and its device in a block of shared
// memory, where there is no byte stream (docs/abi section 2).
//
//	driver                          control block                          device
//	Dial ── Open ──────────────► number of the session ──── bell ────► Listener
//	     ◄─────────────────────── Opened, areas are zero ◄────────────── Accept ► Conn
//	Conn.Write ──► a slot each ─► ring of requests  ─────── bell ────► Conn.Read
//	Conn.Read  ◄── interrupt 0 ── ring of messages  ◄─────────────────── Conn.Write
//
// A Conn is a net.Conn, so its user need not know how messages are carried. Only whole messages of
// the ABI may be written; each takes a slot. Lists of events and doorbells that are longer than a
// slot are split.
//
// The other side may write anything anywhere in the block, at any time. Words are read once and
// checked. An impossible index is an error of Read and Write.
//
// # Ownership and concurrency
//
// One goroutine may read a Conn and another write it. The receiver of the other side's bells or
// interrupts must call Look.
package control
