// Package gateway carries the plain IP traffic of functions' Ethernet ports between ports of one
// NIC, and to the NIC that has the destination; for that, the gateway's owner seals the packets.
// The package decides and rewrites; it does no I/O and reads no clock.
//
//	guest ─ port ─▶ Take ─▶ Outgoing ─┬─ ARP, ND, DHCP ─▶ replies ───────────┐
//	                                  ├─ Forward: Next, Next … ─▶ Seal each, the owner sends
//	                                  ├─ another endpoint of the tenant ─────┤
//	                                  └─ one of another shard ─▶ Handover    │
//	owner opened ─▶ Opened ─▶ FromTunnel: look up, ECN ─┬─ join ─────────────┴─▶ Deliver ─▶ ports
//	another shard's Handover ─▶ FromShard ──────────────┘
//
// An Endpoint is a function in its tenant's network. A Device carries its frames: a TAP device, or
// any other implementation of the interface. A Tunnel leads to a peer's functions in one tenant,
// under the key that the peer gave for it. Each Gateway has its own Tunnels.
//
// Routes say where each address of each tenant is: at a port and its shard, at a peer, or at the
// gateway itself. A NIC has one Routes, and a Gateway for each shard, which holds the endpoints and
// tunnels of that shard. A frame for a port of another shard is handed over in the clear. So are
// packets of a tunnel: all packets of one key arrive at the shard that has the key's replay window.
//
// The gateway is the only other host on its guest's link. It answers for every address of the
// tenant that has a route, always with the same MAC (proxy ARP, RFC 1027). It speaks ARP, neighbour
// discovery, DHCP with one lease, echo for router addresses, and the ICMP errors of a router. It
// does not carry broadcast, and carries multicast only of functions' own packets (multicast.go). It
// does not answer for the port's own addresses, so that a guest's conflict detection (RFC 5227, RFC
// 4862) finds nothing. Inside a subnet packets pass unchanged except for ECN; between subnets of a
// tenant their TTL or hop limit is decremented.
//
// # Many packets at once
//
// A guest's TCP or UDP frame may stand for up to 64 KiB of packets. A port of the same NIC gets it
// whole. For a tunnel, Next cuts it in place into packets that fit the path. Packets from tunnels
// are joined again, flow by flow, among those that the owner hands over before it asks for Output
// (offload.go, coalesce.go). Checksums are completed when a frame is cut, and verified when packets
// are joined.
//
// # Frames in two places
//
// A port may have copied only the beginning of a frame (Rest). The gateway looks at no other part
// of it: TCP or UDP payload for a port of this shard stays where it is. For any other destination
// the rest is copied first (PortInput.Whole).
//
// # Trust
//
// Guests may send only from their function's MAC and addresses, unless the PF trusts them, and
// never IP protocol 252: only the NIC itself speaks Falcon. A peer may use only the addresses that
// it announced. It is identified by the key that it sealed with. The key also names the tenant, and
// addresses are looked up in that tenant's table only. Every dropped frame is counted by Reason,
// also at its port. Answers and errors are bounded in number and rate, and go only to the port that
// caused them.
//
// A Gateway belongs to one goroutine, that of its shard. FromPort, Next, FromTunnel, FromShard and
// the method Output do not allocate. Routes belong to one goroutine too, which may be another.
// Gateways read them without a lock. The cost of a change does not depend on the number of ports.
//
// References: RFC 826, 1027, 5227 (ARP), 4861, 4862, 8106 (neighbour discovery), 2131 (DHCP), 792,
// 1191, 1812, 4443, 8201 (ICMP), 6040 (ECN in tunnels); docs/tunnel.md.
package gateway
