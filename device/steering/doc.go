// Package steering generates the program with which the kernel puts each frame into the queue of
// the shard that the frame is for, before it is opened.
//
//	frame to the TAP ─▶ program ─┬─ Falcon class: shard of the CID  ─┬─▶ queue k, shard k's
//	                             ├─ gateway class: SPI mod shards   ─┘
//	                             └─ anything else (ARP, neighbour discovery) ─▶ queue 0
//
// The program is eBPF of the socket filter kind, as tun accepts it (TUNSETSTEERINGEBPF, Linux
// 4.16). The fields that it reads are not authenticated. A shard checks which shard a packet
// belongs to, and hands it over if the kernel chose wrongly or does not support the program.
//
// # Ownership and concurrency
//
// Program is a pure function.
package steering
