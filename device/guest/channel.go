package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// Channel sends the control messages of one driver (docs/abi §2) to it: over a byte stream
// (Stream), or another way. The driver's requests go the other way, through a Session.
//
// All methods but End are called on the shard's thread. None waits for the driver, and only Flush
// does I/O.
type Channel interface {
	// CQEvent queues an event of a completion queue. Events of the same queue that the driver has
	// not taken yet are merged into one.
	CQEvent(cqn uint32)
	// AsyncEvent queues an asynchronous event. None is lost.
	AsyncEvent(e *abi.AsyncEvent)
	// Gone drops the waiting events about an object, which was destroyed.
	Gone(kind abi.Object, number uint32)
	// Untaken returns the number of events that the driver has not taken, without those of
	// completion queues.
	Untaken() int
	// Reply answers the register access with that tag.
	Reply(tag uint64, r *abi.RegReply)
	// Forget drops the waiting events: the function was reset, and its objects are gone.
	Forget()
	// Flush sends what was queued since the last Flush. It reports whether it woke a goroutine for
	// that.
	Flush() (woke bool)
	// End ends the session from the device's side: the carrier closes the Session soon after. Any
	// goroutine may call it.
	End()
}
