// Package window is the driver's side of a function's window: doorbells and events without
// messages.
//
//	Open ──► sysfs: PCI 1af4:1110 ──► resource2: header, capabilities, bell ring
//	Ring ──► record in the bell ring ──► resource0 + 0xc, if the device asks for it
//	Listen ◄── interrupt (eventfd of vfio-pci) ◄── records in the event queues
//
// Doorbells need no kernel module and no interrupt: the resources of an ivshmem device can be
// mapped from sysfs by root. If the guest has an IOMMU and the module vfio-pci, the device is
// opened by vfio-pci instead, which also provides the interrupts of its event queues.
//
// Ring may be called by one goroutine at a time. The device is not trusted: the content of the
// window is checked, and an impossible index is an error.
//
// The rules are in docs/abi, section 10.
package window
