package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// listenReserved makes the function known to other NICs for their own requests.
func (f *Function) listenReserved() {
	for _, service := range []uint64{serviceWire, serviceUD} {
		_ = f.set.cfg.Manager.Listen(f.number(), service) // there is always room
	}
}

// rejectReserved rejects a request of another NIC itself.
func (f *Function) rejectReserved(now falcon.Time, id uint32) {
	_ = f.set.cfg.Manager.Reject(now, f.number(), id, rejectWrong, nil) // it may have ended by itself
	f.forget(id)
}
