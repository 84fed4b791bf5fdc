// Package capture writes what a NIC sends and receives as pcapng, and watches a
// link of the kernel as an independent witness.
//
//	shard ─ Packet ─▶ free list ─▶ queue ─▶ writer goroutine ─▶ file
//	           └ none free: counted as dropped
//
// A capture has two interfaces: Sealed, the Ethernet frames of the uplink as they are on the wire,
// and Clear, the inner IP packets before sealing and after opening; and one for each function's
// port that is captured, with the frames as the guest sends and gets them. Clear captures and those
// of ports hold tenants' data, so files are made with mode 0600. The number of packets dropped
// stands in the interface statistics at the file's end.
//
// A Sniffer reads an AF_PACKET socket: it sees what the kernel saw, not what the
// NIC believes to have sent.
//
// # Ownership and concurrency
//
// Packet may be called from any goroutine, never blocks, and copies the frame.
// On a nil *Capture it does nothing, so that callers need not ask whether a
// capture runs. Close writes what is queued and waits for the goroutine.
//
// Format: draft-ietf-opsawg-pcapng (IETF), written by gopacket's pcapgo.
package capture
