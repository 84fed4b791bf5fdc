// Package settings defines the settings of a function that can be changed while a NIC runs: one
// table, with a line for each key.
//
//	`vnic vf set pf0.vf1 KEY TEXT` ─▶ Set ─▶ config.Function ─▶ the shard applies it
//	                                              │
//	the next NIC sets it again ◀── Memory ◀── Text┘
//
// To add a key, add a line to the table and nothing else: the line has the parser, the function
// that writes the value as text, the names in `ip link set … vf`, whether a new value makes it
// another function, and the words of `vnic vf set --help` and of the shell's completion.
//
// # Ownership and concurrency
//
// The table does not change. A Memory may be used by any goroutine.
package settings
