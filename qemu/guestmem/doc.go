// Package guestmem maps the memory of guests into this process, within budgets.
//
//	Budget of the NIC ◀── Budget of an attachment ◀── Budget of a client
//	                                                    │ Map: charged to all of them, or refused
//	                                                    ▼
//	                        file  ┌────────┬══ Mapping ══┬─────────┐
//
// A file with a guest's memory costs its owner nothing, however long it is. A mapping of it costs
// this process address space, of which it has 2^47 bytes, and one of the 65530 mappings that Linux
// allows a process. A process that has none left cannot go on. So each mapping is charged before it
// is made, to its attachment and to the NIC as a whole, and no more of a file is mapped than was
// asked for, rounded to the file's pages.
//
// # Ownership and concurrency
//
// A Budget may be used by several goroutines. A Mapping belongs to the caller of Map.
//
// References: mmap(2), memfd_create(2), F_GET_SEALS in fcntl(2); vm.max_map_count and
// Documentation/arch/x86/x86_64/mm.rst of Linux.
package guestmem
