// Package wire defines the packet format of RDMA over Falcon: the base header (RBTH) and the table
// that says which extended headers an opcode has. The extended headers are those of package ib.
//
// An RDMA packet is the upper-layer part of one Falcon packet:
//
//	Falcon header | RBTH | extended headers (by opcode) | data | pad to 4 bytes
//	              └────────── Headers.Append ─────────┘
//
// Field positions follow the figures of the RDMA over Falcon specification 0.9 §8.2 and §8.3. Its
// opcode table §8.1.3 swaps AtomicETH and AtomicAckETH; here they are as in §8.3.6 and §8.3.7.
//
// The package has no state. Nothing allocates, blocks or keeps a reference to its arguments.
package wire
