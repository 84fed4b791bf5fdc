// Package service drives functions inside the NIC's own process: peers that answer, so that one guest
// is enough to bring a driver up.
//
//	function: {service: echo}
//	     ▲ rings, memfd                     other function, here or behind the network
//	     │                                     │
//	  guestlib ◀─ Listen(Number) ──────────────┤ connect: private data is a Welcome
//	     │     ◀─ datagram queue pair ─────────┤ or a wire request, answered with a Welcome
//	     │     ◀─ SEND, datagram ──────────────┤
//	     └──────  answer ─────────────────────▶│
//	              region ◀────── READ, WRITE ──┘ without the service
//
//	kind      answer to a message                        region
//	echo      the same bytes, and immediate data         none
//	memory    none: the message is taken                 to be read, written and updated by atomics
//	pattern   how many bytes are the pattern (8 bytes)   the pattern, to be read
//
// A Service is an ordinary driver: guestlib over an attachment that hands its connections over within
// the process. What peers may do to it is limited as for every driver, and by the number of peers
// that it serves at once.
//
// # Ownership
//
// Start starts a goroutine for the listener of each service, one for its datagrams and one for each
// peer. Close of the Attachment ends them. When its function is reset or lost, a service begins anew.
package service
