// Package window is the driver's side of a function's window: doorbells without a message.
//
//	Open ──► sysfs: PCI 1af4:1110 ──► resource2: header, capabilities, bell ring
//	Ring ──► record in the bell ring ──► resource0 + 0xc, if the device asks for it
//
// It needs no kernel module and no interrupt: the resources of an ivshmem device can be mapped from sysfs by root. A Window belongs to one
// goroutine at a time. The device is not trusted: what lies in the window is checked, and an index that cannot be true is an error.
//
// The rules are in docs/abi, section 10.
package window
