// Package pci is the configuration space of one PCI Express function: what a guest's firmware and
// kernel read and write before a driver has it.
//
//	0x000 ┌────────────────────────┐ header: ids, class Ethernet, BARs
//	0x040 ├────────────────────────┤ PCI Express capability, with function level reset
//	0x080 ├────────────────────────┤ MSI-X, or MSI
//	0x100 ├────────────────────────┤ device serial number: the function's number
//	0x1000└────────────────────────┘
//
// Each bit is read-only unless a mask says that it can be written. BARs keep what is written to
// them, which is nothing to this package: who emulates the bus decodes addresses, and has the
// tables and the masks of MSI and MSI-X.
//
// A Space belongs to one goroutine.
//
// References: PCI Local Bus 3.0 §6; PCI Express Base 4.0 §7.5, §7.7, §7.9.3; QEMU hw/vfio.
package pci
