// Package steering writes the program by which the kernel puts each frame into the queue of the
// shard that it is for, before anybody has opened it.
//
//	frame to the TAP ─▶ program ─┬─ Falcon class: shard of the CID  ─┬─▶ queue k, shard k's
//	                             ├─ gateway class: SPI mod shards   ─┘
//	                             └─ anything else (ARP, neighbour discovery) ─▶ queue 0
//
// The program is eBPF of the kind of socket filters, as tun takes it (TUNSETSTEERINGEBPF, Linux
// 4.16). It proves nothing of what it reads: a shard checks whose a packet is, and hands it to
// another when the kernel was wrong or takes no program.
//
// # Ownership and concurrency
//
// Program is a pure function.
package steering
