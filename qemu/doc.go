// Package qemu attaches guests to the NIC and starts them.
//
//	guest (QEMU) ── vhost-user socket ──► VhostUser ── Listen(port) ─┐
//	guest (QEMU) ── /dev/vhost-vsock ───► ListenVsock ───────────────┼─► queues.Attachment
//	PCI function ── vfio-user socket ───► VfioUser ──────────────────┤
//	bare client ─── unix socket ────────► ListenUnix ────────────────┘      │ Accept
//	                + memfd preamble                                        ▼
//	                                                       queues.Session: net.Conn, Identity, Watch(RAM)
//
//	guest (QEMU) ── vhost-user socket ──► NetPort: a function's Ethernet port
//
//	supervisor: VhostRelay, VfioRelay, Socket ── connections, descriptors ──► worker: the above
//
//	Machine ──► Start ──► Process: QMP, console file, output stream, bounded Stop
//	CommandLine ──► Shell, Argv: the command line of a guest that the user starts
//	DialQMP ──► Inspect, PlugWindow, PlugPort: a running guest
//
// An attachment's session is a byte stream plus the guest's memory. Package queues and the packages
// above it define what the bytes mean. The memory comes from different sources: vhost-user and
// vfio-user pass the guest's RAM, a bare client passes memory files, and the kernel's vsock passes
// none, so the configuration names a file and its layout.
//
// Subpackages: vhostuser and vfiouser (protocols with QEMU), vhostnet (Ethernet ports), pci
// (configuration space), virtqueue (the device side of virtqueues), vsock (virtio-vsock flows),
// ivshmem (windows for doorbells and events), guestmem (budgets of mapped memory), eventfd, fdpass
// (descriptors over unix sockets), image (kernel and initramfs), guestinit (PID 1 of that
// initramfs), vhosttest (a front end without QEMU, for tests).
//
// QEMU does not reconnect to a vsock device or a PCI function. So a relay in the supervisor answers
// QEMU, and a worker, which may be killed and replaced, runs the device behind it.
//
// # Ownership and concurrency
//
// The code of this package runs in its own goroutines and may block. Only the data path of a
// NetPort runs on a thread of the NIC; package vhostnet says which of its methods that thread
// calls. Mapped guest memory belongs to the session that announced it: a mapping is removed only
// after each watcher (Session.Watch) was told and has returned. So a watcher must return, and must
// not wait for something that itself waits in Watch.
//
// References: QEMU docs/interop/vhost-user.rst and qmp-spec; Virtio 1.2 §5.10;
// Linux Documentation/driver-api/early-userspace/buffer-format.rst (newc).
package qemu
