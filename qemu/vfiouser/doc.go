// Package vfiouser is the vfio-user conversation: the protocol by which QEMU (10.1 and newer) has a
// PCI device that lives in another process.
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
// It knows messages, descriptors, which ranges are mapped and which access lies inside its region;
// what a region holds is the Device's business. Each message has a file of its own.
//
// Client is the other end: a process that hands a conversation on to another has one, and tests
// drive devices by it without a virtual machine.
//
// # Ownership and concurrency
//
// Serve runs the whole conversation in its caller's goroutine and calls the Device from there. A
// descriptor that came belongs to the Device once it was handed over; others are closed.
//
// # Trust
//
// A client is a QEMU that we may not have started. What breaks the framing (sizes, types, an order
// that cannot be) ends the conversation with an error that names message and value. What is wrong
// in itself (a region that is not there, ranges that overlap, descriptors too many) is refused by
// errno and changes nothing.
//
// Reference: QEMU docs/interop/vfio-user.rst; linux/vfio.h.
package vfiouser
