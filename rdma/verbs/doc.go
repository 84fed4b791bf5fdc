// Package verbs holds the objects that verbs programs work with: protection and XRC domains, memory
// regions and windows, completion queues, shared receive queues and the entries of work queues. It
// knows no wire: which transport carries the messages is the business of those who use it.
//
// Files, each one knowing those above it:
//
//	table     numbers with generations          limits   how many of each kind there may be
//	owner     the function, to its objects: memory, features, events, faults; violation, faults, area
//	kinds     the one table of kinds of objects
//	pd        domains ◀── mr, register, mw      regions and windows, and who may access them
//	sge       gather and scatter over regions   atomic   8 bytes of a region
//	timer     what is due later                 cq, held completions and their events
//	queue     entries of work queues, read once ◀── receive ◀── srq
//	path, ah  where datagrams go, and what carries them (Carrier)
//	transitions  the table of a queue pair's states
//	objects   all of a function
//
// A key is looked up once, with the rights and bounds of the access: Regions.Remote for a peer,
// Regions.SGEs for an entry of the function's own. What comes back is held as long as the transport
// may want the bytes, until the acknowledgement; each access looks anew whether the region is still
// valid, so that deregistration takes effect at once.
//
// # Trust
//
// The guest is hostile. Queue entries are copied once and checked on the copy; every access to guest
// memory goes through queues.Area, which turns a fault into an error; numbers and keys carry
// generations and belong to one function. A driver that breaks the rules of queues and doorbells
// stops its function (Owner.Stop), and is told which rule it broke (Owner.Broke).
//
// # Ownership and time
//
// Everything belongs to the goroutine of its shard. There are no locks and no calls back: the
// Notifier appends to queues. Time is an argument. Nothing allocates per operation.
package verbs
