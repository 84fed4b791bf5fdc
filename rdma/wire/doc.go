// Package wire holds the packet formats of RDMA over Falcon: the base header, the extended
// headers and the opcode table that says which headers an opcode carries and in which order.
//
// An RDMA packet is the upper-layer part of one Falcon packet:
//
//	Falcon header | RBTH | extended headers (by opcode) | data | pad to 4 bytes
//
// The package has no state and imports nothing of this module. Every header is one file with a
// struct, Append (encode behind b) and Parse (decode the start of b). Headers and its Append and
// ParseHeaders put the sequence of one packet together.
//
// All fields are big-endian. Field positions follow the figures of the RDMA over Falcon
// specification 0.9 §8.2 and §8.3; its opcode table §8.1.3 swaps AtomicETH and AtomicAckETH,
// corrected here as in §8.3.6 and §8.3.7.
//
// No function allocates, blocks or keeps a reference to its arguments; all are safe for
// concurrent use.
package wire
