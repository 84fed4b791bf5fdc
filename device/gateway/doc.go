// Package gateway carries the plain IP of functions' Ethernet ports: between ports of one NIC and,
// sealed by its owner, to the NIC that has the destination. It decides and rewrites; it does no I/O
// and reads no clock.
//
//	guest ─ port ─▶ Take ─▶ Outgoing ─┬─ ARP, ND, DHCP ─▶ replies ───────────┐
//	                                  ├─ Forward: Next, Next … ─▶ Seal each, the owner sends
//	                                  ├─ another endpoint of the tenant ─────┤
//	                                  └─ one of another shard ─▶ Handover    │
//	owner opened ─▶ Opened ─▶ FromTunnel: ECN, steer ─┬─ join ───────────────┴─▶ Deliver ─▶ ports
//	another shard's Handover ─▶ FromShard ────────────┘
//
// An Endpoint is a function in its tenant's network. A Port is what carries its frames: a TAP, or
// whatever else implements the interface. A Tunnel leads to a peer's functions in a tenant, under
// the key that the peer gave for it; Tunnels are those of a Gateway.
//
// Routes say where each address of each tenant is: a port and its shard, a peer, or the gateway
// itself. There is one for a NIC and a Gateway for each of its shards, which has the endpoints and
// tunnels of that shard. A port's frames for a port of another shard are handed over in the clear,
// as are packets of a tunnel: those of one key all come to the shard that has its replay window.
//
// To its guest the gateway is the only other station on the link: it answers for every address of
// the tenant that has a route with one MAC (proxy ARP, RFC 1027), and speaks ARP, neighbour
// discovery, DHCP with one lease, echo for router addresses, and the ICMP errors of a router.
// Broadcast is not carried, and multicast only for RoCEv2 of functions (multicast.go). It is silent
// about the port's own addresses, so that a guest's conflict detection (RFC 5227, RFC 4862) finds
// nothing. Inside a subnet packets pass unchanged but for ECN; between subnets of a tenant they
// lose a hop.
//
// # Many packets at once
//
// A guest's TCP or UDP frame may stand for up to 64 KiB. For a port of the same NIC it passes
// whole; for a tunnel Next cuts it once, to what the way carries, in place. What comes from tunnels
// is joined again, flow by flow, within what the owner hands over before it asks for Output
// (segment.go, coalesce.go). Checksums are completed when a frame is cut, verified when packets are
// joined.
//
// # Frames in two places
//
// A port may have copied the beginning of a frame only (Rest). The gateway looks at nothing else of
// it: payload of TCP or UDP that goes to a port of this shard stays where it is. For anything else
// the rest is copied first (rest.go).
//
// # Trust
//
// Guests may send from their function's MAC and addresses only, unless the PF trusts them, and
// never IP protocol 252: only the NIC itself speaks Falcon. A peer is believed only for the
// addresses it told of and is known by the key it sealed with, which also names the tenant:
// addresses are looked up nowhere but in that tenant's table. Every frame that ends here is counted
// by Reason, also at its port. Answers and errors are bounded in number and rate, and never go to
// anyone but the port that caused them.
//
// A Gateway belongs to one goroutine, the shard's. FromPort, Next, FromTunnel, FromShard and Output
// do not allocate. Routes belong to one goroutine, too, which may be another: gateways read them
// without a lock, and a change costs what it changes, however many ports there are.
//
// References: RFC 826, 1027, 5227 (ARP), 4861, 4862, 8106 (neighbour discovery), 2131 (DHCP), 792,
// 1191, 1812, 4443, 8201 (ICMP), 6040 (ECN in tunnels); docs/tunnel.md.
package gateway
