// Package vfiouser implements vfio-user, the protocol by which QEMU (10.1 and newer) uses a PCI
// device in another process.
//
//	QEMU (client)                                  this package (server)
//	   │  header │ body │ fds (SCM_RIGHTS)             │
//	   ├── VERSION ───────────────────────────────────►│ Greeting
//	   ├── DEVICE_GET_INFO, GET_REGION_INFO, … ───────►│ Device.Region, Device.Vectors
//	   ├── DMA_MAP, DMA_UNMAP (fd of the memory) ─────►│ Device.Map, Device.Unmap
//	   ├── DEVICE_SET_IRQS (eventfds) ────────────────►│ Device.SetIRQs
//	   ├── REGION_READ, REGION_WRITE ─────────────────►│ Device.Read, Device.Write
//	   └── DEVICE_RESET ──────────────────────────────►│ Device.Reset
//
// The server handles messages and descriptors, keeps the list of mapped ranges, and checks that
// each access lies within its region. The Device provides the content of the regions.
//
// Client is the other side of the protocol. A process that relays a device to another process uses
// it, and tests use it to drive devices without a virtual machine.
//
// # Ownership and concurrency
//
// Serve handles all messages in its caller's goroutine and calls the Device from there. The Device
// owns each descriptor that is passed to it; Serve closes the others.
//
// # Trust
//
// A client is a QEMU that somebody else may have started. Serve disconnects a client that breaks
// the framing (sizes, types, an impossible order); the error names the message and the value. A
// request that is well-formed but invalid (a region that does not exist, overlapping ranges, too
// many descriptors) is answered with an errno and changes nothing.
//
// Reference: QEMU docs/interop/vfio-user.rst; linux/vfio.h.
package vfiouser
