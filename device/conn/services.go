package conn

import "github.com/falcon-vnic/vnic/queues/abi"

// Services from firstReserved on are reserved for NICs: no driver can listen on them or connect to
// them.
const (
	firstReserved = uint64(abi.FirstReservedService)
	serviceWire   = firstReserved
	serviceUD     = firstReserved + 1
)

const (
	driverListeners   = 256 // per function
	reservedListeners = 2   // in addition
)

// rejectWrong is the reason of a rejection: the requested queue pair has another peer, or does not
// exist.
const rejectWrong = 1

// rejectReserved rejects a request that another NIC made for itself.
func (f *Function) rejectReserved(id uint32) {
	f.tell(Request{Kind: Reject, ID: id, N: rejectWrong})
	f.forget(id)
}
