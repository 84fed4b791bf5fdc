// Package table is a hash table that one goroutine changes while any number of others look up keys
// in it, without a lock. It is for data that the shards of one NIC share and only read.
//
//	owner ─ Set, Delete ─▶ chains of entries that never change ◀─ Find ─ readers
//
// A change replaces one chain; growing rebuilds all of them. A reader sees each entry as it was
// before or after a change. Several changes are not atomic together. Find neither waits nor
// allocates.
package table
