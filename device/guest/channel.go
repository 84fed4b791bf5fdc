package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// Channel is what carries the control messages of one driver (docs/abi §2) to it: a byte stream
// (Stream), or anything else that can. What the driver asks goes the other way through a Session.
//
// All methods but End are called on the shard's thread. None waits for the driver, and only Flush
// does I/O.
type Channel interface {
	// CQEvent says that a completion queue has news. News of one queue that the driver has not
	// taken yet is said once.
	CQEvent(cqn uint32)
	// AsyncEvent tells what happened. None is lost.
	AsyncEvent(e *abi.AsyncEvent)
	// Gone drops the events about an object that the driver has not taken: it is destroyed.
	Gone(kind abi.Object, number uint32)
	// Untaken is how many events but those of completion queues the driver has not taken.
	Untaken() int
	// Reply answers the register access with that tag.
	Reply(tag uint64, r *abi.RegReply)
	// Forget drops the events that the driver has not taken: the function was reset, and they speak
	// of objects that are gone.
	Forget()
	// Flush lets the driver have what was said since the last Flush. It reports whether it woke a
	// goroutine for that.
	Flush() (woke bool)
	// End ends the session from the device's side: its carrier closes the Session soon. Any
	// goroutine may call it.
	End()
}
