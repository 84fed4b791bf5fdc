// Package underlay carries sealed datagrams between NICs: PSP in UDP, over IPv4 or IPv6. Its users
// see datagrams only (Layer): to which peer, by which of the paths to it and with which marks one is
// sent, and where one came from and how it was marked. Below it are the frames of the uplink's
// device.
//
//	                  ┌ Layer ───────────────────────────────────────────────┐
//	uplink frame ─▶ Input ─┬─▶ Datagram (PSP bytes, borrowed from the frame) │
//	                  │    └─▶ ARP, ND: neighbours, replies ───┐             │
//	PSP bytes ─▶ Output ─┬─▶ frame complete in place           ├─▶ Next ─▶ frames to send
//	                  │  └─▶ neighbour unknown: parked, asked ─┘             │
//	                  └──────────────────────────────────────────────────────┘
//
// Stack is the NIC's own small network stack on an Ethernet port: Ethernet, ARP, IPv4 and UDP for
// one IPv4 address, or neighbour discovery (RFC 4861), IPv6 and UDP for one IPv6 address. It is
// sans-I/O: frames and the time come in as arguments.
//
// Everything that input from outside can fill is bounded: neighbours, parked frames, queued ARP and
// ND packets. A frame that is malformed or not for this address is dropped and counted by Verdict.
// The UDP checksum is neither sent nor verified: PSP authenticates the payload. IPv4 options are
// skipped; fragments and packets with IPv6 extension headers are dropped. There is no
// autoconfiguration and no MLD: the address is configured, and multicast is expected to be flooded
// on the link.
//
// The package also contains the inner IP header of PSP tunnel mode (inner.go).
//
// Ownership: a Layer belongs to one goroutine (the shard). Input and Output do not allocate once a
// neighbour is known.
package underlay
