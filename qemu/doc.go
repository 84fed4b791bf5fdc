// Package qemu attaches guests to the NIC and starts them.
//
//	guest (QEMU) ── vhost-user socket ──► VhostUser ── Listen(port) ─┐
//	guest (QEMU) ── /dev/vhost-vsock ───► ListenVsock ───────────────┼─► queues.Attachment
//	PCI function ── vfio-user socket ───► VfioUser ──────────────────┤
//	bare client ─── unix socket ────────► ListenUnix ────────────────┘      │ Accept
//	                + memfd preamble                                        ▼
//	                                                       queues.Session: net.Conn, Peer, Watch(RAM)
//
//	Machine ──► Start ──► Process: QMP, console file, output stream, bounded Stop
//	Line ──► a command line for others to run; DialQMP ──► Inspect, PlugWindow, PlugPort
//	Line ──► Shell, Argv: the command line of a guest somebody else starts
//
// An attachment's session is a byte stream and the guest's memory; what the
// bytes mean is the business of package queues and above. Where the memory comes
// from differs: vhost-user hands over the guest's whole RAM, the kernel's vsock
// has none so that a named file and a layout come from the configuration, and a
// bare client passes memory files.
//
// Subpackages: vhostuser and vfiouser (conversations with QEMU), pci (configuration space), vring
// (split virtqueues), vsock (virtio-vsock flows), ivshmem (windows for doorbells and events),
// fdpass (descriptors over unix sockets), image (kernel and initramfs), guestinit (PID 1 of that
// initramfs), vhosttest (a front end without QEMU, for tests).
//
// # Ownership and concurrency
//
// Everything here runs in its own goroutines and may block; nothing is on the
// NIC's data path. Mapped guest memory belongs to the session that announced it:
// a watcher (Session.Watch) is told before a mapping goes away, and the mapping
// goes when the watcher has returned. So a watcher must return, and must not
// wait for something that itself waits in Watch.
//
// References: QEMU docs/interop/vhost-user.rst and qmp-spec; Virtio 1.2 §5.10;
// Linux Documentation/driver-api/early-userspace/buffer-format.rst (newc).
package qemu
