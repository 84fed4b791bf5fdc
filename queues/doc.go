// Package queues is the host's access to guest memory and to what lies in it:
// regions, page lists and the areas of queues, plus the interfaces through
// which guests reach the NIC.
//
//	Session.Watch ──regions──► Memory        device address → host mapping
//	                             ▲
//	                 PageList ───┤           copied once from guest memory
//	                             ▲
//	                 Area ───────┘           one queue; satisfies ring.Bytes
//
// The guest is hostile. Its memory is touched only by the bounded copy and
// atomic methods of Memory, and of Area over it: no slice of guest memory
// leaves this package, so nothing can be checked twice and changed in
// between. Bounds are compared by subtraction and cannot wrap. A mapping that
// fails under an access (a truncated file, a region taken away) gives a
// *FaultError, not a crash; the function that owns the memory goes to its
// error state, nothing else notices.
//
// A Memory and what is built on it belong to one goroutine: the shard of the
// function. When the guest's regions change the session calls the function
// given to Watch, and the shard calls SetRegions before that call returns;
// page lists and areas hold device addresses only and stay valid. Fast paths
// do not allocate.
//
// Code that needs package unsafe is in memory_unsafe.go. The ABI is in
// queues/abi, index arithmetic in queues/ring, the rules in docs/abi.
package queues
