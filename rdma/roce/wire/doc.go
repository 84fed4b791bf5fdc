// Package wire defines the packet format of RoCEv2: the base transport header (BTH), the extended
// headers that differ from RDMA over Falcon, the table of opcodes, the IP and UDP headers around
// them, and the invariant CRC at the end.
//
//	IPv4 or IPv6 | UDP, port 4791 | BTH | extended headers (by opcode) | data | pad | ICRC
//	└──────── Way.Put ──────────┘ └────────── Headers.Append ────────┘             └ Seal
//	└───────────────────────────────────── Parse ────────────────────────────────────────┘
//
// RETH, AtomicETH, AtomicAckETH, ImmDt and IETH are those of package rdma/wire, which have
// InfiniBand's layouts. DETH and XRCETH have different layouts here.
//
// The package has no state. Nothing allocates, blocks or keeps a reference to its arguments.
//
// References: InfiniBand Architecture 1.2.1 (IBA) §9; Annex A17 (RoCEv2).
package wire
