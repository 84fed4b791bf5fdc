// Package record keeps the tapes of a NIC's shards (package tape) in a file, or the last of them in memory.
//
//	shard 0 ─ tape ─┐  full buffers                    ┌─ tape ─▶ shard.Player
//	shard 1 ─ tape ─┼─▶ Recorder ─▶ file ─▶ Recording ─┼─ tape ─▶ shard.Player
//	                ├── empty buffers ◀─┘   ▲          └─ …
//	                └─▶ Ring: memory ─ saved ┘
//
// The file begins with a magic number and a Header; chunks follow, each of one shard's tape, with a
// checksum. docs/record.md describes it.
//
// # Ownership and concurrency
//
// A shard's thread never waits for the file: it exchanges a full buffer for an empty one, and where
// the file is too slow for its buffers, or has reached its limit, the recording of the NIC ends. A
// goroutine writes. A Recording may be read by any number of tapes, each in its goroutine.
//
// With a Ring, each shard has a part of the memory. The buffer of its tape is there, and at the end of a Step
// the shard copies what is in the buffer to the rest of the part, a ring of Steps. It does not wait for the
// lock: while somebody copies entries for a file, the tape keeps what it has until the next Step. The memory
// lives as long as somebody holds its descriptor, so it can outlive the process; Rescue saves what a process
// left, and trusts nothing in it.
//
// # Trust
//
// A file can come from anybody. Lengths are bounded before memory is taken for them, checksums find
// damage, and what the tapes hold is checked by those who play them. Nobody but its owner may read a
// file that is made: it holds what guests sent and received. It holds no key of PSP.
package record
