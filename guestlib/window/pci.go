package window

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
)

// PCI is a function's PCI device, opened by this process.
type PCI struct {
	shared []byte // BAR2
	regs   []byte // BAR0
	blocks blocks
	dir    string // in sysfs
	own    bool   // the NIC's own device (vfio-user), which does DMA like any PCI device; false: ivshmem

	vfio  *vfioDevice // nil: mapped from sysfs
	noIRQ error       // why there are no interrupts

	irq chan struct{} // signals interrupts of the control block; nil: no interrupts
	wg  sync.WaitGroup
}

const (
	sysfs = "/sys/bus/pci/devices"
	// registers is the number of bytes of BAR0 that are mapped.
	registers = 256
)

// kind is a kind of PCI device that has a window.
type kind struct {
	vendor, device string
	own            bool
}

// kinds are QEMU's ivshmem device, and the NIC's own device with its default ids.
var kinds = []kind{{"0x1af4", "0x1110", false}, {"0x1af4", "0x10f0", true}}

// OpenPCI opens the NIC's own PCI device of a function: the device at an address like 0000:00:08.0,
// or the first one that has a window of the function and no driver. No other way to the NIC is
// needed.
func OpenPCI(address string, function uint32) (*PCI, error) {
	if address != "" {
		p, err := openDevice(filepath.Join(sysfs, address), function, true)
		if err != nil {
			return nil, fmt.Errorf("PCI device %s: %w", address, err)
		}
		return p, nil
	}
	return findDevice(sysfs, function, func(k kind) bool { return k.own })
}

// findDevice opens the first device of a kind that has a window of the function.
func findDevice(dir string, function uint32, wanted func(kind) bool) (*PCI, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	var errs []error
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		k, ok := kindOf(at)
		if !ok || !wanted(k) {
			continue
		}
		p, err := openDevice(at, function, k.own)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, ErrNone) {
			errs = append(errs, fmt.Errorf("window %s: %w", e.Name(), err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, ErrNone
}

func kindOf(dir string) (kind, bool) {
	vendor, device := text(dir, "vendor"), text(dir, "device")
	for _, k := range kinds {
		if k.vendor == vendor && k.device == device {
			return k, true
		}
	}
	return kind{}, false
}

func text(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b))
}

// openDevice maps a device if its header says that it belongs to the function. If the guest
// supports vfio it uses vfio and gets interrupts; otherwise it maps the device from sysfs, without
// interrupts.
func openDevice(dir string, function uint32, own bool) (_ *PCI, err error) {
	p := &PCI{dir: dir, own: own}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := switchOn(dir); err != nil {
		return nil, err
	}
	if p.shared, err = mapResource(filepath.Join(dir, "resource2"), 0); err != nil {
		return nil, err
	}
	if p.blocks, err = findBlocks(p.shared, function); err != nil {
		return nil, err
	}
	if own && (p.blocks.control.length == 0 || function == AnyFunction && p.blocks.inUse(p.shared)) {
		return nil, ErrNone
	}
	p.noIRQ = p.interrupt(dir)
	if p.vfio == nil {
		if p.regs, err = mapResource(filepath.Join(dir, "resource0"), registers); err != nil {
			return nil, err
		}
		return p, p.master(dir)
	}
	return p, nil
}

// interrupt opens the device by vfio. If it fails p is unchanged.
func (p *PCI) interrupt(dir string) error {
	if len(p.blocks.events) == 0 {
		return errors.New("the device has no event queues")
	}
	v, err := openVFIO(dir, 1+len(p.blocks.events))
	if err != nil {
		return err
	}
	if len(v.shared) < len(p.shared) {
		v.close()
		return fmt.Errorf("vfio maps %d of %d bytes of the window", len(v.shared), len(p.shared))
	}
	_ = unix.Munmap(p.shared)
	p.vfio, p.shared, p.regs = v, v.shared, v.regs
	if p.own {
		p.irq = make(chan struct{}, 1)
		irq := v.irqs[0] // close forgets it
		p.wg.Go(func() { p.hear(irq) })
	}
	return nil
}

// hear waits for the interrupts of the control block.
func (p *PCI) hear(irq *os.File) {
	defer close(p.irq)
	var count [8]byte
	for {
		if _, err := irq.Read(count[:]); err != nil {
			return // closed
		}
		select {
		case p.irq <- struct{}{}:
		default:
		}
	}
}

// Dial opens a session by the device's control block.
func (p *PCI) Dial(ctx context.Context) (net.Conn, error) {
	call := func() { store32(p.regs, abi.WindowDoorbell, abi.WindowDoorbellControl) }
	d := control.Driver{Block: p.blocks.control.of(p.shared), Number: rand.Uint32(), Call: call, Interrupts: p.irq, After: time.After}
	c, err := d.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("control block: %w", err)
	}
	return c, nil
}

// Translated reports whether the device is behind an IOMMU and can access only memory of MapDMA.
func (p *PCI) Translated() bool { return p.own && p.vfio != nil }

// MapDMA maps memory for the device at a device address. Both are whole pages.
func (p *PCI) MapDMA(mem []byte, addr uint64) error { return p.vfio.mapDMA(mem, addr) }

// UnmapDMA unmaps memory of MapDMA.
func (p *PCI) UnmapDMA(addr, size uint64) error { return p.vfio.unmapDMA(addr, size) }

// Close releases the device.
func (p *PCI) Close() {
	if p.vfio != nil {
		p.vfio.close()
		p.wg.Wait()
		p.shared, p.regs = nil, nil
	}
	for _, m := range [][]byte{p.shared, p.regs} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	p.shared, p.regs = nil, nil
}

// switchOn makes the device respond to accesses to its memory. If vfio-pci has the device, it does
// that itself.
func switchOn(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "enable"), []byte("1"), 0)
	if errors.Is(err, unix.EBUSY) && boundTo(dir) == vfioDriver {
		return nil
	}
	return err
}

// master makes a device of the NIC a bus master, so that it can access memory. The driver has to do
// that (DRV-1103): PCI 3.0 §6.2.2.
func (p *PCI) master(dir string) error {
	if !p.own {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, "config"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var command [2]byte
	if _, err := f.ReadAt(command[:], pciCommand); err != nil {
		return fmt.Errorf("PCI command: %w", err)
	}
	command[0] |= pciMemory | pciBusMaster
	if _, err := f.WriteAt(command[:], pciCommand); err != nil {
		return fmt.Errorf("PCI command: %w", err)
	}
	return nil
}

// mapResource maps a resource file, whole if size is 0.
func mapResource(path string, size int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size == 0 {
		fi, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if fi.Size() < abi.WindowHeaderSize || fi.Size() > 1<<30 {
			return nil, ErrNone // another kind of device
		}
		size = int(fi.Size())
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %s: %w", path, err)
	}
	return m, nil
}
