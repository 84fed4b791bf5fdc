package conn

import "github.com/falcon-vnic/vnic/queues/abi"

// Services from firstReserved on belong to the NICs; no driver can listen on
// them or connect to them.
const (
	firstReserved = uint64(abi.FirstReservedService)
	serviceWire   = firstReserved
	serviceUD     = firstReserved + 1
)

const (
	driverListeners   = 256 // per function
	reservedListeners = 2   // in addition
)

// rejectWrong is the reason of a rejection: the queue pair named has another peer, or is gone.
const rejectWrong = 1

// rejectReserved rejects a request of another NIC itself.
func (f *Function) rejectReserved(id uint32) {
	f.tell(Request{Kind: Reject, ID: id, N: rejectWrong})
	f.forget(id)
}
