// Package window is the driver's side of a function's window: doorbells and events without a
// message.
//
//	Open ──► sysfs: PCI 1af4:1110 ──► resource2: header, capabilities, bell ring
//	Ring ──► record in the bell ring ──► resource0 + 0xc, if the device asks for it
//	Listen ◄── interrupt (eventfd of vfio-pci) ◄── records in the event queues
//
// Doorbells need no kernel module and no interrupt: the resources of an ivshmem device can be
// mapped from sysfs by root. Where the guest has an IOMMU and the module vfio-pci the device is
// taken by that instead, which gives the interrupts of its event queues too.
//
// Ring belongs to one goroutine at a time. The device is not trusted: what lies in the window is
// checked, and an index that cannot be true is an error.
//
// The rules are in docs/abi, section 10.
package window
