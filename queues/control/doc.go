// Package control carries the control messages of a driver and its device in a block of shared
// memory: docs/abi section 2, where there is no stream of bytes.
//
//	driver                          control block                          device
//	Dial ── Open ──────────────► number of the session ──── bell ────► Listener
//	     ◄─────────────────────── Opened, areas are zero ◄────────────── Accept ► Conn
//	Conn.Write ──► a slot each ─► ring of requests  ─────── bell ────► Conn.Read
//	Conn.Read  ◄── interrupt 0 ── ring of messages  ◄─────────────────── Conn.Write
//
// A Conn is a net.Conn, so that who speaks by it need not know what carries its messages. What is
// written must be whole messages of the ABI: each takes a slot. Lists of events and doorbells that
// are longer are cut.
//
// The other side may write anything anywhere in the block, at any time. Words are read once and
// checked; an index that cannot be true is an error of Read and Write.
//
// # Ownership and concurrency
//
// A Conn may be read by one goroutine and written by another. Whoever takes the other side's bells
// or interrupts tells by Look.
package control
