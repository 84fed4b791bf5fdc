// Package table is a hash table that one goroutine changes while any number of others look
// something up, without a lock: what shards of one NIC share and only read.
//
//	owner ─ Set, Delete ─▶ chains of entries that never change ◀─ Find ─ readers
//
// A change replaces one chain, and growing makes all of them anew. A reader sees each entry as it
// was before a change or as it is after it; several changes are not one. Find neither waits nor
// allocates.
package table
