// Package arena provides memory that a device may read and write: pages that do not move and whose
// device addresses are known.
//
//	Source ──Grow──► Chunk{Mem, Addrs}      GuestRAM: anonymous mmap, pinned, addresses from /proc/self/pagemap
//	                   │                    Memfd:    one sealed memfd passed to the device process
//	                   │                    File:     a named file that the device process maps too
//	                 Pool ──Alloc──► Block  (page granular, zeroed, freed in any order)
//	                   └──────────► PageList (1–3 levels of pages holding page addresses)
//
// # Why the Go heap and mlock are not sufficient
//
// The device works with guest-physical addresses, so a page must not move after its address was
// read. mlock does not promise that: memory compaction and the collapse into transparent huge pages
// move mlocked pages. GuestRAM therefore maps its own arenas, turns huge pages off
// (MADV_NOHUGEPAGE), keeps them out of forked children (MADV_DONTFORK), pins them by registering
// them as buffers of an io_uring instance, which takes a long-term pin in the kernel, and only then
// reads the page addresses. If any step fails, Grow returns an error that says what to change.
// TestLongPinnedMemory (cmd/vnic/guest) forces compaction and collapse in a guest under traffic:
// mlocked memory moves, this memory does not.
//
// # Ownership and concurrency
//
// Pool is safe for concurrent use. A Block belongs to the code that allocated it. Its Bytes are
// valid until Free or the Pool's Close. Close must be called only when the device no longer uses
// the memory.
package arena
