package window

import (
	"os"
	"path/filepath"
	"time"
)

// What follows is for tools that look at the device itself.

// Folder is the device's in sysfs.
func (p *PCI) Folder() string { return p.dir }

// Load32 loads a word of BAR0, of its first 256 bytes.
func (p *PCI) Load32(off int) uint32 { return load32(p.regs, off) }

// Store8 and Store32 store to the first 256 bytes of BAR0.
func (p *PCI) Store8(off int, v uint8)   { p.regs[off] = v }
func (p *PCI) Store32(off int, v uint32) { store32(p.regs, off, v) }

// Raised waits until the interrupt of an event queue, 1 or more, was raised, and reports whether it
// was. Nobody else may listen to it.
func (p *PCI) Raised(vector int, wait time.Duration) bool {
	irq := p.vfio.irqs[vector]
	_ = irq.SetReadDeadline(time.Now().Add(wait))
	defer func() { _ = irq.SetReadDeadline(time.Time{}) }()
	var count [8]byte
	_, err := irq.Read(count[:])
	return err == nil
}

// Vectors is how many interrupts the device has for this process, that of the control block
// included.
func (p *PCI) Vectors() int {
	if p.vfio == nil {
		return 0
	}
	return len(p.vfio.irqs)
}

// AddressOf is where memory lies in this process, which decides what size of pages an IOMMU maps it
// by.
func (p *PCI) AddressOf(mem []byte) uint64 { return addressOf(mem) }

// Reset does a function level reset. The device's session ends.
func (p *PCI) Reset() error {
	if p.vfio != nil {
		_, err := ioctl(p.vfio.device, vfioReset, 0)
		return os.NewSyscallError("VFIO_DEVICE_RESET", err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "reset"), []byte("1"), 0); err != nil {
		return err
	}
	return p.master(p.dir)
}

// Config reads n bytes of the device's configuration space.
func (p *PCI) Config(off, n int) ([]byte, error) {
	f, err := os.Open(filepath.Join(p.dir, "config"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, int64(off))
	return b, err
}

// SetConfig writes to the device's configuration space.
func (p *PCI) SetConfig(off int, b []byte) error {
	f, err := os.OpenFile(filepath.Join(p.dir, "config"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, int64(off))
	return err
}
