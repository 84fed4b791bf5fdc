// Package vhostnet is a virtio-net device for rings that another process (a guest's QEMU, or DPDK)
// shares by vhost-user. It connects a function's Ethernet port with the guest, without a TAP, a
// bridge or the kernel in between.
//
//	guest's transmit rings ─▶ Take ─▶ Read: one copy, then the chain is completed ─▶ gateway
//	                                   └─ long frame: the beginning is copied; Rest ─┐
//	guest's receive rings  ◀─ Take ◀─ Write, WriteWith: one copy into as many chains as needed ◀─ gateway
//	                          Return: completes the chains that were read
//	                          Settle: publishes completed chains and interrupts the guest if it asked for that
//	nothing to read ─▶ Arm ─▶ FD is readable when the guest kicks
//
// The NIC parses only bytes that it has copied out of guest memory, because the guest may change
// its memory at any time. The end of a long frame (Rest) stays in guest memory until it is written
// to another guest or copied (Fetch). Return then completes its chain and the chains behind it. So
// chains of both kinds of rings are completed in order, which lets another process continue where
// this one was killed (package virtqueue).
//
// # Ownership and concurrency
//
// Read, Write, WriteWith, Return, Settle, Arm, Wake, Stats and every Rest belong to the thread that
// serves the port. The connection to the front end has its own goroutine (Port implements
// vhostuser.Device). That goroutine has the thread make each change of rings and memory, between
// reads and writes (Config.Post), and waits for it. The thread never waits for the front end.
//
// # Trust
//
// Whatever the guest writes into its rings results in frames or in a failure of the port: its rings
// stop, the reason is logged and returned by Reason, and the front end is told by its error
// eventfds. The port works again once the driver has stopped all rings and starts again. The
// process, other ports and the thread go on. If a fault happens while a frame is copied from guest
// to guest, the port of the guest whose memory faulted fails.
//
// References: Virtio 1.2 §5.1 (network device), §5.1.6.2 (transmission), §5.1.6.3 (receive
// buffers), §5.1.6.4 (merging of receive buffers); QEMU docs/interop/vhost-user.rst.
package vhostnet
