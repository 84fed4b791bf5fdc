// Package vhostnet is a virtio-net device whose rings another process, a guest's QEMU or DPDK,
// hands over by vhost-user: the guest's side of a function's Ethernet port, without TAP, bridge or
// kernel in between.
//
//	guest's transmit rings ─▶ Take ─▶ Read: one copy, and the chain goes back ─▶ gateway
//	                                   └─ of a long frame its beginning; Rest ──┐
//	guest's receive rings  ◀─ Take ◀─ Write, WriteWith: one copy into as many chains as it needs ◀─ gateway
//	                          Return: gives chains back that were read
//	                          Settle: shows the guest what is done, and interrupts it if it wants
//	nothing to read ─▶ Arm ─▶ FD is readable when the guest kicks
//
// What anybody looks at of a frame is copied out of guest memory before, since the guest may change
// it at any time. The end of a long frame (Rest) stays where it is until it is written to another
// guest, or is copied after all (Fetch); then its chain is complete, and so are those behind it, at
// the latest with Return. So both kinds of rings are used in order, which is what lets another
// process go on where this one was killed (package virtqueue).
//
// # Ownership and concurrency
//
// Read, Write, WriteWith, Return, Settle, Arm, Wake, Stats and every Rest belong to the thread that
// serves the port. The front end's conversation has its own goroutine (Port implements
// vhostuser.Device): what it changes of rings and memory it has that thread do, between reads and
// writes, and waits for it (Config.Post). Nothing on the thread waits for the front end.
//
// # Trust
//
// Whatever the guest leaves in its rings ends in frames, or in an error of the port: its rings
// stop, the reason is logged and told (Reason), and the front end hears of it by its error
// eventfds. A driver that begins anew, when none of its rings is left, has a working port again.
// The process, other ports and the thread go on. Where a frame is copied from guest to guest, a
// fault is that of the guest whose memory it is.
//
// References: Virtio 1.2 §5.1 (network device), §5.1.6.2 (transmission), §5.1.6.3 (receive
// buffers), §5.1.6.4 (merging of receive buffers); QEMU docs/interop/vhost-user.rst.
package vhostnet
