// Package underlay is the NIC's own small network stack on the uplink: Ethernet, ARP, IPv4 and UDP for one address,
// enough to carry PSP datagrams between NICs (PSP in UDP port 1000). It is sans-I/O: frames and the time come in as arguments.
//
//	uplink frame ─▶ Input ─┬─▶ Datagram (PSP bytes, borrowed from the frame)
//	                       └─▶ ARP: neighbour table, replies ──┐
//	PSP bytes ─▶ Output ─┬─▶ frame complete in place           ├─▶ Next ─▶ frames to send
//	                     └─▶ neighbour unknown: parked, asked ─┘
//
// Everything outside input can grow is bounded: neighbours, parked frames, queued ARP packets. What is not for this
// address or not well formed is dropped and counted by Verdict. The UDP checksum is neither sent nor verified: PSP
// authenticates what lies behind it. IP options are skipped, fragments dropped (PSP packets are sent with DF).
//
// Next to it lives the inner IPv4 header of PSP tunnel mode (inner.go).
//
// Ownership: a Stack belongs to one goroutine (the shard). Input and Output do not allocate once a neighbour is known.
package underlay
