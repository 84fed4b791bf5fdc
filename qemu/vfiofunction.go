package qemu

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/qemu/pci"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// VfioPCI describes how functions appear on the PCI bus.
type VfioPCI struct {
	pci.IDs
	// MSI gives the functions MSI instead of MSI-X: QEMU 11.1 exits when a device with MSI-X is
	// unplugged.
	MSI bool
}

// BARs of a function: docs/abi section 10.
const (
	vfioRegisters = 0 // with the bell
	vfioTables    = 1 // MSI-X tables
	vfioWindow    = 2

	vfioRegistersSize = 8192
)

// vfioBack uses what QEMU gives to a function: memory, interrupts and resets. It is a vfioGuest in
// this process, or a VfioRelay that passes them on to a worker. Its methods are those of
// vfiouser.Device. None blocks for long.
type vfioBack interface {
	Map(m vfiouser.Map, file int) error
	Unmap(r vfiouser.Range)
	SetIRQs(irq, start uint32, fds []int) error
	Trigger(irq, vector uint32)
	Reset()
}

// vfioFunction is a function as its QEMU sees it. It answers each access without asking another
// process, because the guest's processors stand still during an access.
type vfioFunction struct {
	space *pci.Space
	win   *ivshmem.Window
	irq   uint32 // vfiouser.IRQMSIX or vfiouser.IRQMSI
	back  vfioBack
}

var _ vfiouser.Device = (*vfioFunction)(nil)

// newVfioFunction returns the PCI function with a number and a window.
func newVfioFunction(number uint32, win *ivshmem.Window, look VfioPCI, back vfioBack) (*vfioFunction, error) {
	f := &vfioFunction{win: win, irq: vfiouser.IRQMSIX, back: back}
	as := &pci.Endpoint{
		IDs:        look.IDs,
		Interrupts: pci.Interrupts{Vectors: ivshmem.Vectors, MSI: look.MSI, BAR: vfioTables},
		Serial:     uint64(number),
	}
	as.BARs[vfioRegisters].Size = vfioRegistersSize
	if look.MSI {
		f.irq = vfiouser.IRQMSI
	} else {
		as.BARs[vfioTables].Size = pci.TablesSize
	}
	as.BARs[vfioWindow] = pci.BAR{Size: abi.WindowSize, Wide: true, Prefetch: true}
	var err error
	if f.space, err = pci.New(as); err != nil {
		return nil, fmt.Errorf("vfio-user: %w", err)
	}
	return f, nil
}

// Region implements vfiouser.Device.
func (f *vfioFunction) Region(index uint32) (r vfiouser.RegionInfo, file int) {
	r.Flags = vfiouser.RegionReadable | vfiouser.RegionWritable
	switch index {
	case vfioRegisters:
		r.Size = vfioRegistersSize
	case vfioTables:
		if f.irq != vfiouser.IRQMSIX {
			return vfiouser.RegionInfo{}, vfiouser.NoFile
		}
		r.Size = pci.TablesSize
	case vfioWindow:
		r.Size = abi.WindowSize
		r.Flags |= vfiouser.RegionMappable
		return r, f.win.File()
	case vfiouser.RegionConfig:
		r.Size = pci.Size
	default:
		return vfiouser.RegionInfo{}, vfiouser.NoFile
	}
	return r, vfiouser.NoFile
}

// Read implements vfiouser.Device. The MSI-X tables read as zero: QEMU keeps the tables and the
// pending bits itself.
func (f *vfioFunction) Read(region uint32, off uint64, b []byte) {
	clear(b)
	switch region {
	case vfiouser.RegionConfig:
		f.space.Read(off, b)
	case vfioWindow: // from a client that does not map the window
		f.win.ReadAt(b, off)
	}
}

// Write implements vfiouser.Device.
func (f *vfioFunction) Write(region uint32, off uint64, b []byte) {
	switch region {
	case vfiouser.RegionConfig:
		if f.space.Write(off, b) {
			f.Reset()
		}
	case vfioRegisters:
		if off == abi.WindowDoorbell && len(b) == 4 {
			f.win.Ring(binary.LittleEndian.Uint32(b))
		}
	case vfioWindow:
		f.win.WriteAt(b, off)
	}
}

// Vectors implements vfiouser.Device.
func (f *vfioFunction) Vectors(irq uint32) uint32 {
	if irq != f.irq {
		return 0
	}
	return ivshmem.Vectors
}

// SetIRQs implements vfiouser.Device.
func (f *vfioFunction) SetIRQs(irq, start uint32, fds []int) error {
	return f.back.SetIRQs(irq, start, fds)
}

// Trigger implements vfiouser.Device.
func (f *vfioFunction) Trigger(irq, vector uint32) { f.back.Trigger(irq, vector) }

// Map implements vfiouser.Device.
func (f *vfioFunction) Map(m vfiouser.Map, file int) error { return f.back.Map(m, file) }

// Unmap implements vfiouser.Device.
func (f *vfioFunction) Unmap(r vfiouser.Range) { f.back.Unmap(r) }

// Reset implements vfiouser.Device.
func (f *vfioFunction) Reset() {
	f.space.Reset()
	f.back.Reset()
}
