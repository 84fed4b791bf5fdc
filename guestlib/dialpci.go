package guestlib

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
)

// pciMemory is the memory that a PCI device of the NIC can access, with the device. The device is
// released when it can access no memory any more.
type pciMemory struct {
	arena.Source
	pci *window.PCI
}

// PCIOf returns the PCI device of memory from Dial, or nil if there is none. It is valid as long as
// the memory.
func PCIOf(src arena.Source) *window.PCI {
	if m, ok := src.(*pciMemory); ok {
		return m.pci
	}
	return nil
}

func (m *pciMemory) Close() error {
	err := m.Source.Close()
	m.pci.Close()
	return err
}

// dialPCI opens a PCI device and a session by it. If the guest has an IOMMU it maps the memory
// there, otherwise it pins the memory and uses physical addresses.
func dialPCI(ctx context.Context, t target, memory int) (net.Conn, arena.Source, error) {
	pci, err := window.OpenPCI(t.address, uint32(t.function))
	if errors.Is(err, window.ErrNone) {
		err = fmt.Errorf("%w; has QEMU a vfio-user-pci device for it, and is it free?", err)
	}
	if err != nil {
		return nil, nil, err
	}
	m := &pciMemory{pci: pci}
	if pci.Translated() {
		m.Source = arena.NewIOMMU(pci, memory)
	} else {
		m.Source = arena.NewGuestRAM(memory)
	}
	conn, err := pci.Dial(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return conn, m, nil
}
