// Package vsock carries virtio-vsock stream flows over a pair of virtqueues.
//
//	net.Conn Write ──► send buffer ─┐ one packet per flow, round robin   ┌──────┐
//	                                ├──────────────────────────────────► │ Link │ ──► peer's RX ring
//	replies (RST, RESPONSE,         │ (bounded by the peer's credit      └──────┘
//	credit, SHUTDOWN) ──────────────┘  and the link's room)
//
//	net.Conn Read ◄── receive buffer ◄── Transport.Input ◄──────────────── peer's TX ring
//	                  (bounded by the credit given to the peer)
//
//	a flow:   REQUEST ─► connecting ─ RESPONSE ─► open ─ SHUTDOWN ─► half open ─ RST ─► gone
//	                           └───────── RST ──────┴──────────────────────────────────► gone
//
// Transport is symmetrical: a device uses it with the local CID 2 (the host), the test driver with
// the guest's CID. Device connects a Transport with two split virtqueues, for a vhost-user back
// end.
//
// # Ownership and concurrency
//
// One mutex per Transport guards all its flows and the link; nothing blocks while holding it.
// Packets are sent by the goroutine that makes them possible: a writer, a kick that reports room, a
// packet that needs an answer. There is no engine goroutine, so a Write puts its data into the
// peer's ring without switching goroutines.
//
// # Trust
//
// Flows, waiting connections of a listener, the bytes that a flow buffers in each direction and the
// resets of unknown flows that wait are all bounded. Input never waits for room in the other
// direction, so the two queues cannot block each other. A peer that exceeds its credit loses the
// flow. Packets with a foreign CID are dropped and counted. A queue whose driver wrote nonsense, or
// whose memory has gone, is not used until the driver sets it up again; the process goes on.
//
// Reference: Virtio 1.2 §5.10 (socket device): §5.10.6.3 buffer space management, §5.10.6.4 receive
// and transmit, §5.10.6.5 stream sockets.
package vsock
