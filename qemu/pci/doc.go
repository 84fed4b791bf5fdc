// Package pci is the configuration space of one PCI Express function: the registers that a guest's
// firmware and kernel read and write before a driver uses the function.
//
//	0x000 ┌────────────────────────┐ header: ids, class Ethernet, BARs
//	0x040 ├────────────────────────┤ PCI Express capability, with function level reset
//	0x080 ├────────────────────────┤ MSI-X, or MSI
//	0x100 ├────────────────────────┤ device serial number: the function's number
//	0x1000└────────────────────────┘
//
// A mask says which bits can be written. BARs store what is written to them but have no effect
// here: the emulator of the bus decodes addresses, and keeps the tables and masks of MSI and MSI-X.
//
// A Space belongs to one goroutine.
//
// References: PCI Local Bus 3.0 §6; PCI Express Base 4.0 §7.5, §7.7, §7.9.3; QEMU hw/vfio.
package pci
