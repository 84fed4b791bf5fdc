package transport

import "github.com/falcon-vnic/vnic/queues/abi"

// Packet is a part of a SEND or WRITE of the peer.
type Packet struct {
	Op          abi.Opcode // OpSend…, OpWrite…; the kinds with immediate data or a key to invalidate only in the last packet
	First, Last bool       // of its message
	Solicited   bool       // the receive's completion is a solicited event
	Spoiled     bool       // the peer could not read its memory, so there is no data (complete in error)
	ID          uint32     // number of the packet in traces
	Message     uint32     // number among the messages that take a receive, from 1
	Offset      uint32     // of a SEND's data in its message
	Length      uint32     // of the received data
	Imm         uint32     // immediate data, or the key to invalidate

	Addr    uint64 // WRITE: where the data goes
	RKey    uint32
	Claimed uint32 // WRITE: length in the packet's own header
	Ahead   uint32 // WRITE: bytes of its message behind this packet, if the wire format says so
}

// Sends reports whether the packet belongs to a SEND, not a WRITE.
func (p *Packet) Sends() bool {
	return p.Op == abi.OpSend || p.Op == abi.OpSendImm || p.Op == abi.OpSendInv
}

// TakesReceive reports whether the packet needs a receive: it belongs to a SEND or to a WRITE with
// immediate data.
func (p *Packet) TakesReceive() bool { return p.Sends() || p.Op == abi.OpWriteImm }

// Refusal is the reason why a request of the peer is not carried out.
type Refusal uint8

// Refusals.
const (
	Accepted    Refusal = iota
	NotReady            // no receive: try again later
	Sequence            // a number was out of order
	Invalid             // not a valid request
	Access              // the key does not give the peer that right
	UnknownKey          // no memory has the key
	ForeignKey          // the key is of another protection domain or queue pair
	OutOfBounds         // the memory of the key does not reach that far
	Operation           // could not be carried out
	NotServing          // the queue pair accepts no requests
)

// OfMemory reports whether the peer may not access the memory that the request names.
func (r Refusal) OfMemory() bool { return r >= Access && r <= OutOfBounds }

// Verdict is the result of placing a packet.
type Verdict struct {
	Refusal Refusal
	// Alone means that the refusal fails only the message (complete in error). Otherwise the
	// endpoint fails.
	Alone bool
	// Failed is the completion status for the receive of the message, if the packet supplied no
	// data.
	Failed abi.WCStatus
}

// Atomic is an atomic operation that the peer requests.
type Atomic struct {
	Op      abi.Opcode
	Addr    uint64
	RKey    uint32
	Compare uint64
	SwapAdd uint64
	Masks   abi.AtomicMasks
}

// Memory is memory that a READ of the peer may read.
type Memory interface {
	// Read copies len(dst) bytes at addr. It fails if the memory is gone.
	Read(addr uint64, dst []byte) error
}

// Datagram holds what is sent with the data of a datagram.
type Datagram struct {
	To, From  uint32 // queue pairs
	QKey      uint32
	Imm       uint32
	HasImm    bool
	Solicited bool
	Length    int    // of the data
	Work      uint32 // index of the work request of queue pair From, for traces
	Serial    uint32 // for the use of the transport
}
