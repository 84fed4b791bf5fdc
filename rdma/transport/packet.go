package transport

import "github.com/falcon-vnic/vnic/queues/abi"

// Packet is a part of a SEND or WRITE of the peer.
type Packet struct {
	Op          abi.Opcode // OpSend…, OpWrite…; those with immediate data or a key to invalidate at the last packet only
	First, Last bool       // of its message
	Solicited   bool       // the receive's completion is a solicited event
	Spoiled     bool       // the peer could not read its memory: no data (complete in error)
	ID          uint32     // names the packet to the transport, for traces
	Message     uint32     // number among the messages that take a receive, from 1
	Offset      uint32     // of a SEND's data in its message
	Length      uint32     // of the data that came
	Imm         uint32     // immediate data, or the key to invalidate

	Addr    uint64 // WRITE: where the data goes
	RKey    uint32
	Claimed uint32 // WRITE: the length that the packet itself names
	Ahead   uint32 // WRITE: what its message has behind this packet, where the wire says so
}

// Sends reports whether the packet is a SEND's, else it is a WRITE's.
func (p *Packet) Sends() bool {
	return p.Op == abi.OpSend || p.Op == abi.OpSendImm || p.Op == abi.OpSendInv
}

// TakesReceive reports whether the packet needs a receive: one of a SEND, or a WRITE's with
// immediate data.
func (p *Packet) TakesReceive() bool { return p.Sends() || p.Op == abi.OpWriteImm }

// Refusal says why a request of the peer is not carried out.
type Refusal uint8

// Refusals.
const (
	Accepted   Refusal = iota
	NotReady           // no receive: come again
	Sequence           // a number was out of order
	Invalid            // no valid request
	Access             // memory that the peer may not access
	Operation          // could not be carried out
	NotServing         // the queue pair takes no requests
)

// Verdict is what becomes of a packet.
type Verdict struct {
	Refusal Refusal
	// Alone says that the refusal ends the message and nothing else (complete in error). Otherwise
	// the endpoint fails with it.
	Alone bool
	// Failed is how the receive of the message completes where the packet gave it no data.
	Failed abi.WCStatus
}

// Atomic is an atomic that the peer asks for.
type Atomic struct {
	Op      abi.Opcode
	Addr    uint64
	RKey    uint32
	Compare uint64
	SwapAdd uint64
	Masks   abi.AtomicMasks
}

// Memory is what a READ of the peer may read.
type Memory interface {
	// Read copies len(dst) bytes at addr. An error says that the memory is gone.
	Read(addr uint64, dst []byte) error
}
