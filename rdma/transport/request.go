package transport

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Request is a work request that a queue pair passes to its connection. It lasts until its last
// packet is done or Forget drops it. The endpoint finds its own record of the request by Slot.
type Request struct {
	WQE    abi.SendWQE // what the driver asked for: operation, flags, immediate data, remote address and key, operands
	Masks  abi.AtomicMasks
	Length uint32 // bytes of the message
	Index  uint32 // of its entry in the send queue, for traces
	Slot   uint32 // for the use of the endpoint

	// Progress. The transport changes Issued and Pending.
	Status  abi.WCStatus // of the first failure; WCSuccess while there is none
	Vendor  uint32       // detail of the failure, for CQE.VendorErr
	Issued  bool         // every packet was issued
	Pending int          // packets in flight

	// For the use of the transport.
	Begun   bool
	Spoiled bool   // data of a packet could not be read, and requests complete in error
	Offset  uint32 // of the next packet
	Number  uint32 // among the messages that take a receive
}

// Reads reports whether the request is a READ.
func (r *Request) Reads() bool { return in(r.WQE.Opcode, reads) }

// Atomic reports whether the request is an atomic, masked or not.
func (r *Request) Atomic() bool { return in(r.WQE.Opcode, atomics) }

// Pulls reports whether the request is a READ or an atomic, whose data comes back.
func (r *Request) Pulls() bool { return in(r.WQE.Opcode, reads|atomics) }

// TakesReceive reports whether the message takes a receive at the peer.
func (r *Request) TakesReceive() bool { return in(r.WQE.Opcode, receives) }

// Sets of operations, one bit each, because they are tested several times per packet.
const (
	reads    = 1<<abi.OpRead | 1<<abi.OpReadInv
	atomics  = 1<<abi.OpCmpSwap | 1<<abi.OpFetchAdd | 1<<abi.OpMaskedCmpSwap | 1<<abi.OpMaskedFetchAdd
	receives = 1<<abi.OpSend | 1<<abi.OpSendImm | 1<<abi.OpSendInv | 1<<abi.OpWriteImm
)

func in(op abi.Opcode, set uint64) bool { return set>>op&1 != 0 }

// Errors of Issue.
var (
	ErrBlocked = errors.New("transport: no credit; Unblocked follows")
	ErrWindow  = errors.New("transport: enough packets under way; Done follows")
	ErrEnding  = errors.New("transport: the connection ends; Ended follows")
	ErrFailed  = errors.New("transport: the request failed")
)
