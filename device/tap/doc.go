// Package tap provides a NIC's uplink (Uplink) and its functions' ports (Function) on Linux TAP
// devices, and manages the links around them: bridges, MTU, and suppression of the kernel's own
// traffic (no IPv6 autoconfiguration, no multicast snooping on links made here).
//
//	kernel netdev "vnic1" ◀── bridge, veth, tcpdump …
//	      │ /dev/net/tun
//	Uplink: FD (poll), Read, Write ── the shard
//
// Two backends implement one interface and pass one conformance test. native (the default) opens
// the device itself, with virtio-net headers, close-on-exec from the start, and exclusive creation.
// With Config.Queues it has several queues (uplink.go). With Config.Superframes, runs of
// equal-sized UDP datagrams of one flow pass the kernel as one packet (superframe.go), with one
// system call instead of one for each datagram. water uses the songgao/water library and plain
// frames only. This package adds what that library lacks: close-on-exec, a check of the name's
// length, and closing the descriptor when opening fails.
//
// All calls work in the network namespace of the calling thread; an Uplink also works when its
// thread moves to another namespace. Creating a TAP or a bridge needs root or CAP_NET_ADMIN. Devices made
// here disappear when their Uplink is closed or the process ends, unless they persist or are kept.
//
// Ownership: an Uplink has one owner at a time; Open and the link functions may be called from
// anywhere.
package tap
