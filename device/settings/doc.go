// Package settings is what can be set of a function while a NIC runs: one table, with a line for
// each key.
//
//	`vnic vf set pf0.vf1 KEY TEXT` ─▶ Set ─▶ config.Function ─▶ the shard takes it over
//	                                              │
//	the next NIC sets it again ◀── Memory ◀── Text┘
//
// A key is added in the table and nowhere else: its parser, what writes it down again, what
// `ip link set … vf` calls it, whether it makes the function another one, and the words of
// `vnic vf set --help` and of the shell's completion are there.
//
// # Ownership and concurrency
//
// The table does not change. A Memory may be used by any goroutine.
package settings
