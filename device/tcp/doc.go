// Package tcp gives a shard TCP connections at the addresses of its functions. The TCP is gVisor's
// netstack, whose goroutines and locks stay behind bounded rings: the shard posts and takes, and
// never waits.
//
//	shard's thread                                     │ pump, on its thread        gVisor's goroutines
//	 Listen, Connect, Write, Close ─▶ orders ──────────┼─▶ pump ─▶ endpoint ─┐
//	 Take (IP packet arrived) ──────▶ arrived ─────────┼─▶ pump ─▶ link ─────┴─▶ TCP, timers
//	 Next  ◀──────────────────────── events ◀──────────┼── pump ◀─ endpoint ◀────────┤
//	 Transmit (IP packet to send) ◀─ departing ◀───────┼────────── link ◀────────────┘
//
// Each function is a NIC of the netstack with one address, so functions of different tenants may
// have the same address.
//
// # A connection
//
//	Connect ─▶ Connected ─▶ Data, Acknowledged … ─▶ PeerClosed ─▶ Lost or Closed
//	Listen  ─▶ Incoming  ─▶ Data, Acknowledged … ─▶ PeerClosed ─▶ Lost or Closed
//
// Lost or Closed is the last event of each connection: Lost if the peer, the network or a bound ended
// it, Closed if the shard did. Data that the shard does not take is kept and holds the peer's window
// closed. Acknowledged tells how much of what was written the peer's TCP has acknowledged; the room
// for writing follows from it. gVisor does not tell, so the pump reads it from the segments that
// arrive.
//
// # Bounds
//
// Limits bounds what a function may use. Connections that linger in TIME_WAIT count. Of those that
// peers are making, each listener remembers a limited number; beyond it, SYN cookies answer, which
// need no memory. A connection buffers a limited number of bytes in each direction. In each ring a
// function may use no more room than it leaves free. IP packets that find a ring full are lost, as in
// a network; orders and events wait.
//
// # Ownership and concurrency
//
// A Stack and its Conns belong to one goroutine. Config.Wake is called by others when there is
// something for Next or Transmit. Close ends all goroutines and waits for them, so it is called when
// the shard's thread has ended.
//
// References: RFC 9293 (TCP); gvisor.dev/gvisor/pkg/tcpip.
package tcp
