package window

import (
	"os"
	"path/filepath"
	"time"
)

// The functions in this file are for tools that examine the device itself.

// Folder returns the device's folder in sysfs.
func (p *PCI) Folder() string { return p.dir }

// Load32 loads a word from the first 256 bytes of BAR0.
func (p *PCI) Load32(off int) uint32 { return load32(p.regs, off) }

// Store8 and Store32 store to the first 256 bytes of BAR0.
func (p *PCI) Store8(off int, v uint8)   { p.regs[off] = v }
func (p *PCI) Store32(off int, v uint32) { store32(p.regs, off, v) }

// Raised waits for the interrupt of an event queue, 1 or more, and reports whether it was raised in
// time. Nothing else may listen on the interrupt.
func (p *PCI) Raised(vector int, wait time.Duration) bool {
	irq := p.vfio.irqs[vector]
	_ = irq.SetReadDeadline(time.Now().Add(wait))
	defer func() { _ = irq.SetReadDeadline(time.Time{}) }()
	var count [8]byte
	_, err := irq.Read(count[:])
	return err == nil
}

// Vectors returns the number of interrupts that this process gets from the device, including that
// of the control block.
func (p *PCI) Vectors() int {
	if p.vfio == nil {
		return 0
	}
	return len(p.vfio.irqs)
}

// AddressOf returns the address of memory in this process. Its alignment decides which page size an
// IOMMU uses for it.
func (p *PCI) AddressOf(mem []byte) uint64 { return addressOf(mem) }

// Reset does a function level reset, which ends the device's session.
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
