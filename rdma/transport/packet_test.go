package transport_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestKindsOfRequests: which operations read, are atomic, and take a receive at the peer, as their
// requester and their target see them.
func TestKindsOfRequests(t *testing.T) {
	for op, want := range map[abi.Opcode]struct{ reads, atomic, receive, sends bool }{
		abi.OpSend:           {receive: true, sends: true},
		abi.OpSendImm:        {receive: true, sends: true},
		abi.OpSendInv:        {receive: true, sends: true},
		abi.OpWrite:          {},
		abi.OpWriteImm:       {receive: true},
		abi.OpAtomicWrite:    {},
		abi.OpRead:           {reads: true},
		abi.OpReadInv:        {reads: true},
		abi.OpCmpSwap:        {atomic: true},
		abi.OpFetchAdd:       {atomic: true},
		abi.OpMaskedCmpSwap:  {atomic: true},
		abi.OpMaskedFetchAdd: {atomic: true},
		abi.OpLocalInv:       {},
		abi.OpBindMW:         {},
		abi.OpRegMR:          {},
		200:                  {},
	} {
		r, p := transport.Request{WQE: abi.SendWQE{Opcode: op}}, transport.Packet{Op: op}
		if r.Reads() != want.reads || r.Atomic() != want.atomic || r.Pulls() != (want.reads || want.atomic) || r.TakesReceive() != want.receive {
			t.Errorf("%v: reads %t, atomic %t, pulls %t, takes a receive %t", op, r.Reads(), r.Atomic(), r.Pulls(), r.TakesReceive())
		}
		if p.Sends() != want.sends || p.TakesReceive() != want.receive {
			t.Errorf("%v: a packet sends %t, takes a receive %t", op, p.Sends(), p.TakesReceive())
		}
	}
}
