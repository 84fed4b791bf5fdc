package rdmap

import "fmt"

// Opcode is the 4-bit RDMA opcode. Only those of RFC 7306 figure 2 are known here.
type Opcode uint8

// Opcodes.
const (
	OpImmediate      Opcode = 0x8
	OpImmediateSE    Opcode = 0x9
	OpAtomicRequest  Opcode = 0xa
	OpAtomicResponse Opcode = 0xb
)

// Queue is a DDP untagged queue number (RFC 7306 §10.2).
type Queue uint32

// Queues.
const (
	QueueSend           Queue = 0
	QueueReadRequest    Queue = 1
	QueueTerminate      Queue = 2
	QueueAtomicResponse Queue = 3
)

// Valid reports whether op is an opcode of RFC 7306.
func (op Opcode) Valid() bool { return op >= OpImmediate && op <= OpAtomicResponse }

// Queue is the queue the message of a valid opcode consumes a buffer of (RFC 7306 figure 2).
func (op Opcode) Queue() Queue {
	switch op {
	case OpAtomicRequest:
		return QueueReadRequest
	case OpAtomicResponse:
		return QueueAtomicResponse
	}
	return QueueSend
}

// Len is the length of the segment of a valid opcode in bytes, 0 for others.
func (op Opcode) Len() int {
	switch op {
	case OpImmediate, OpImmediateSE:
		return ImmediateLen
	case OpAtomicRequest:
		return AtomicRequestLen
	case OpAtomicResponse:
		return AtomicResponseLen
	}
	return 0
}

// String names op as RFC 7306 does.
func (op Opcode) String() string {
	switch op {
	case OpImmediate:
		return "Immediate Data"
	case OpImmediateSE:
		return "Immediate Data with SE"
	case OpAtomicRequest:
		return "Atomic Request"
	case OpAtomicResponse:
		return "Atomic Response"
	}
	return fmt.Sprintf("RDMAP opcode %#x", uint8(op))
}
