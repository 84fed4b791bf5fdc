// Package vhostnet is a virtio-net device whose rings another process, a guest's QEMU or DPDK, hands
// over by vhost-user: the guest's side of a function's Ethernet port, without TAP, bridge or kernel
// in between.
//
//	guest's transmit rings ─▶ Take ─▶ Read: one copy, and the chain goes back ─▶ gateway
//	guest's receive rings  ◀─ Take ◀─ Write: one copy into as many chains as it needs ◀─ gateway
//	                          Settle: shows the guest what is done, and interrupts it if it wants
//	nothing to read ─▶ Arm ─▶ FD is readable when the guest kicks
//
// A frame is copied out of guest memory before anybody looks at it, since the guest may change it at
// any time, and its chain is complete then. So both kinds of rings are used in order, which is what
// lets another process go on where this one was killed (package virtqueue).
//
// # Ownership and concurrency
//
// Read, Write, Settle, Arm, Wake and Stats belong to the thread that serves the port. The front end's
// conversation has its own goroutine (Port implements vhostuser.Device): what it changes of rings and
// memory it has that thread do, between reads and writes, and waits for it (Config.Post). Nothing on
// the thread waits for the front end.
//
// # Trust
//
// Whatever the guest leaves in its rings ends in frames, or in an error of the port: its rings stop,
// the reason is logged and told (Reason), and the front end hears of it by its error eventfds. A
// driver that begins anew has a working port again. The process, other ports and the thread go on.
//
// References: Virtio 1.2 §5.1 (network device), §5.1.6.2 (transmission), §5.1.6.3 (receive buffers),
// §5.1.6.4 (merging of receive buffers); QEMU docs/interop/vhost-user.rst.
package vhostnet
