// Package tcp gives a shard TCP connections at the addresses of its functions. The TCP is gVisor's
// netstack, which runs on the shard's thread and in the shard's time: its segments are handled in Step,
// and so are its timers.
//
//	shard                         Stack                         gVisor
//	 Take (IP packet arrived) ──▶ arrivals (merged) ──────────▶ endpoint of the flow ─┐
//	 Step ──────────────────────▶ clock ──────────────────────▶ timers ───────────────┤
//	 Listen, Connect, Close ────▶ listener, stream ───────────▶ endpoint ─────────────┤
//	 Write, Flush ──────────────▶ stream ─ pending ───────────▶ endpoint ─────────────┤
//	 Next ◀────────────────────── stream ◀ dirty ◀───────────── endpoint ◀────────────┤
//	 Transmit ◀────────────────── departing ◀────────────────── function (link) ◀─────┘
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
// for writing follows from it. gVisor does not tell that, so it is read from the segments that
// arrive.
//
// # Many segments at once
//
// What a segment costs TCP hardly depends on its length. Segments that continue each other and arrive in
// the same Step are merged into one of up to 64 KiB (merge.go), and what arrives for a connection has one
// acknowledgement a Step. What was written before a Flush is sent in packets of up to 64 KiB, each of which
// stands for several (Departure.Segment); the gateway cuts them, as it cuts those of guests.
//
// # Losses
//
// The congestion control is Reno, not CUBIC: CUBIC's window grows with time, in seconds or in round trips of at
// least a millisecond (gVisor's MinSRTT), and Reno's with each round trip. The whole window is at most
// Limits.Buffer. After a loss Reno has it back within milliseconds; CUBIC takes tens of milliseconds.
//
// # Bounds
//
// Limits bounds what a function may use. Connections that linger in TIME_WAIT count, and the oldest makes
// room for a new one. Of those that peers are making, each listener remembers a limited number; beyond it,
// SYN cookies answer, which need no memory. A connection buffers a limited number of bytes in each direction. Of the packets
// that wait for Transmit, a function may use no more room than it leaves free; what finds no room is
// lost, as in a network.
//
// # Recordings
//
// The tape of a recorded shard (package tape) holds all that Next and Transmit tell the shard. When the tape
// plays, they tell it again, and there is no netstack (tape.go).
//
// # Ownership and concurrency
//
// A Stack and its Conns belong to one goroutine, the shard's. gVisor has goroutines for segments, which
// have nothing to do: the shard handles the segments itself (inline_unsafe.go). Only what gVisor passes
// from one endpoint to another, as data that comes with the ACK of a SYN cookie, can wake one of them. It
// takes gVisor's locks for as long as it takes to handle that segment, and calls Config.Wake. A fault
// within gVisor ends its connections, and nothing else (fault.go). Close ends all goroutines and waits for
// them, so it is called when the shard's thread has ended.
//
// References: RFC 9293 (TCP); gvisor.dev/gvisor/pkg/tcpip.
package tcp
