// Package steering generates the programs with which the kernel gives each frame, or each datagram,
// to the shard that it is for, before it is opened.
//
//	frame to the TAP ──────┐             ┌─ Falcon class: shard of the CID  ─┬─▶ queue or socket k,
//	datagram to a socket ──┴─▶ program ──┼─ gateway class: SPI mod shards   ─┘   shard k's
//	                                     └─ anything else (ARP, neighbour discovery) ─▶ queue 0
//
// The program of a TAP is eBPF of the socket filter kind, as tun accepts it (TUNSETSTEERINGEBPF,
// Linux 4.16). That of sockets is classic BPF (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5): loading eBPF
// needs rights that a NIC on sockets can do without. The fields that they read are not
// authenticated. A shard checks which shard a packet belongs to, and hands it over if the kernel
// chose wrongly or does not support the program.
//
// # Ownership and concurrency
//
// Program and Sockets are pure functions.
package steering
