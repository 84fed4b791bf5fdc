// Package capture writes the packets that a NIC sends and receives to pcapng files, and captures
// frames on a kernel link as an independent witness.
//
//	shard ─ Packet ─▶ free list ─▶ queue ─▶ writer goroutine ─▶ file
//	           └ none free: counted as dropped
//
// A capture has up to two interfaces of the NIC: Sealed, the Ethernet frames of the uplink as they
// are on the wire, and Clear, the inner IP packets before sealing and after opening. It has a further
// interface for each captured port of a function, with the frames as the guest sends and receives
// them. Programs that take one type of interface only, as tcpdump does, read it if Clear is not
// together with others. Clear
// captures and those of ports contain tenants' data, so files are made with mode 0600. The number
// of dropped packets is in the interface statistics at the end of the file.
//
// A Sniffer reads an AF_PACKET socket: it records the frames that the kernel saw, not those that
// the NIC reports to have sent.
//
// # Ownership and concurrency
//
// Packet may be called from any goroutine, never blocks, and copies the frame. On a nil *Capture it
// does nothing, so callers need not check whether a capture runs. Close writes what is queued and
// waits for the goroutine.
//
// Format: draft-ietf-opsawg-pcapng (IETF), written by gopacket's pcapgo.
package capture
