// Package ib holds what the packet formats of RDMA over Falcon and of RoCEv2 have in common, because
// both take it from InfiniBand: the operations and their numbers, the extended transport headers,
// and the pad.
//
//	base header | extended headers (by opcode) | data | pad to 4 bytes
//
// Each format has its own base header, says which extended headers an opcode carries (Table), and
// where in their words the 24-bit numbers are. RDMA over Falcon is in package rdma/rof/wire, RoCEv2
// in package rdma/roce/wire.
//
// All fields are big-endian. The package has no state. Nothing allocates, blocks or keeps a
// reference to its arguments.
//
// References: InfiniBand Architecture 1.2.1 (IBA) §9; RDMA over Falcon 0.9 §8.
package ib
