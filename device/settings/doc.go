// Package settings defines the settings of a function that can be changed while a NIC runs: one
// table, with a line for each key. It also remembers, for the NIC's next run, what operators have changed of
// functions (Memory) and of peers (PeerMemory).
//
//	`vnic vf set pf0.vf1 KEY TEXT` ─▶ Set ─▶ config.Function ─▶ the shard applies it
//	                                              │
//	the next NIC sets it again ◀── Memory ◀── Text┘
//
// A key is a line of the table: it has the parser, the function that writes the value as text, the names
// in `ip link set … vf`, whether a new value makes it another function, and the words of `vnic vf set
// --help` and of the shell's completion. What a new value does, the shard says (device/shard/functions.go).
//
// # Ownership and concurrency
//
// The table does not change. Any goroutine may use a Memory or a PeerMemory.
package settings
