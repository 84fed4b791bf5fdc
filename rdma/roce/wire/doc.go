// Package wire defines the packet format of RoCEv2: the base transport header (BTH), the
// table that says which extended headers an opcode has, the IP and UDP headers around them, and the
// invariant CRC at the end. The extended headers are those of package ib.
//
//	IPv4 or IPv6 | UDP, port 4791 | BTH | extended headers (by opcode) | data | pad | ICRC
//	└──────── Way.Put ──────────┘ └────────── Headers.Append ────────┘             └ Way.Put
//	└───────────────────────────────────── Parse ────────────────────────────────────────┘
//
// The package has no state. Nothing allocates, blocks or keeps a reference to its arguments.
//
// References: InfiniBand Architecture 1.2.1 (IBA) §9; Annex A17 (RoCEv2).
package wire
