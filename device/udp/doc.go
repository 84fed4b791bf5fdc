// Package udp is an uplink on the host's UDP sockets: it sends and receives sealed datagrams at an
// address of the host, without a device of its own and without root.
//
//	                ┌ shard 0 ┐
//	datagrams ─▶ socket ─▶ Read ─▶ frames (underlay.Socket)      listens at host:port
//	  │ steer ──▶ socket ─▶ …      one for each shard, SO_REUSEPORT
//	  │
//	  └◀── socket, for each path ◀─ Write ◀─ frames              never read
//
// Its frames have outer headers like those of a TAP (underlay.Socket): Read writes what the
// kernel says of a datagram (source, TOS, TTL) into them, Write reads from them where a datagram
// goes and how it is marked. So capture, impairment and handover to other shards are the same for
// both kinds of uplink. Payloads are not copied here. Datagrams of one size and path cross the
// kernel as one superframe (UDP_SEGMENT, UDP_GRO).
//
// Packets are never fragmented, and ICMP does not change how long they may be (IP_PMTUDISC_PROBE):
// package pathmtu finds that out. What the kernel does not take is dropped and counted, but for a
// full buffer: then Write takes no more.
//
// # Paths
//
// A network chooses among equal ways by addresses and ports. So each path has a socket of its own,
// with a port that the kernel chooses; it is made when the path is first used. Behind NAT only the
// listening socket has a way back, and everything is sent from it (Config.OnePort).
//
// # Steering
//
// The kernel chooses the socket, and so the shard, of each datagram by a program (package steering).
// It is classic BPF, which needs no rights, unlike eBPF.
//
// # Ownership and concurrency
//
// Each tap.Uplink belongs to the thread of its shard. They share nothing.
package udp
