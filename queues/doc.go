// Package queues gives the host access to guest memory and its contents: regions, page lists and
// the areas of queues. It also defines the interfaces through which guests reach the NIC.
//
//	Session.Watch ──regions──► Memory        device address → host mapping
//	                             ▲
//	                 PageList ───┤           copied once from guest memory
//	                             ▲
//	                 Area ───────┘           one queue; satisfies ring.Bytes
//
// The guest is hostile. Only the bounded copy and atomic methods of Memory, and of Area over it,
// touch guest memory. No slice of guest memory leaves this package, so the guest cannot change
// anything between a check and its use. Bounds are compared by subtraction and cannot wrap. If a
// mapping fails during an access (a truncated file, a region taken away), the access returns a
// *FaultError and the process does not crash. The function that owns the memory goes to its error
// state; others are not affected.
//
// A Memory and everything built on it belong to one goroutine, the shard of the function. When the
// guest's regions change, the session calls the function given to Watch, and the shard calls Use
// before that call returns. Page lists and areas hold only device addresses and stay valid. Fast
// paths do not allocate.
//
// Code that needs package unsafe is in memory_unsafe.go. The ABI is in queues/abi, index arithmetic
// in queues/ring, the rules in docs/abi.
package queues
