package rdma

import "github.com/falcon-vnic/vnic/queues/abi"

// event sends an asynchronous event in the words the driver knows.
func (f *Function) event(typ abi.EventType, number, status uint32, reason string) {
	if !f.extended {
		switch typ {
		case abi.EventQPReqErr, abi.EventQPAccessErr:
			typ = abi.EventQPFatal
		case abi.EventQPFatal, abi.EventCQError:
		default:
			return
		}
	}
	f.out.AsyncEvent(typ, number, status, reason)
}
