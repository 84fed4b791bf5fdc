package window

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// vfioDriver is the kernel's driver by which programs use PCI devices.
const vfioDriver = "vfio-pci"

// Numbers of linux/vfio.h.
const (
	vfioCheckExtension  = 0x3b65
	vfioSetIOMMU        = 0x3b66
	vfioGroupGetStatus  = 0x3b67
	vfioGroupSetContain = 0x3b68
	vfioGroupGetDevice  = 0x3b6a
	vfioGetRegion       = 0x3b6c
	vfioGetIRQ          = 0x3b6d
	vfioSetIRQs         = 0x3b6e
	vfioReset           = 0x3b6f
	vfioMapDMA          = 0x3b71
	vfioUnmapDMA        = 0x3b72

	vfioType1       = 1
	vfioViable      = 1
	vfioCanMap      = 4
	vfioBAR0        = 0
	vfioBAR2        = 2
	vfioConfig      = 7
	vfioMSI         = 1
	vfioMSIX        = 2
	vfioEventfd     = 1<<2 | 1<<5 // data are eventfds, for triggers
	vfioRegionSize  = 32
	vfioIRQInfoSize = 16
	vfioIRQSetSize  = 20
	vfioMapSize     = 32
	vfioUnmapSize   = 24
	vfioReadWrite   = 1 | 2
)

// Offsets and bits of PCI's configuration space.
const (
	pciCommand   = 4
	pciMemory    = 1 << 1
	pciBusMaster = 1 << 2 // without it no MSI-X message leaves the device
)

// vfioDevice is a PCI device that this process has opened by the kernel's vfio-pci.
type vfioDevice struct {
	container, group, device int
	shared, regs             []byte
	irqs                     []*os.File // eventfds, by vector
}

// errNoIOMMU is the error in guests without an IOMMU. Most guests have none.
var errNoIOMMU = errors.New("the guest has no IOMMU, without which Linux gives no interrupts to programs: start QEMU with one (vnic qemu --iommu)")

// openVFIO opens a device by vfio-pci, with at most so many interrupt vectors. An IOMMU group with
// several devices can be opened by only one process.
func openVFIO(dir string, vectors int) (_ *vfioDevice, err error) {
	group, err := os.Readlink(filepath.Join(dir, "iommu_group"))
	if err != nil {
		return nil, errNoIOMMU
	}
	if err := bindVFIO(dir); err != nil {
		return nil, err
	}
	v := &vfioDevice{container: -1, group: -1, device: -1}
	defer func() {
		if err != nil {
			v.close()
			err = fmt.Errorf("vfio: %w", err)
		}
	}()
	if err := v.open(filepath.Base(group), filepath.Base(dir)); err != nil {
		return nil, err
	}
	if v.regs, err = v.mapRegion(vfioBAR0); err != nil {
		return nil, fmt.Errorf("BAR0: %w", err)
	}
	if v.shared, err = v.mapRegion(vfioBAR2); err != nil {
		return nil, fmt.Errorf("BAR2: %w", err)
	}
	return v, v.enableIRQs(vectors)
}

// boundTo returns the name of the driver to which a device is bound, or "" if there is none.
func boundTo(dir string) string {
	driver, err := os.Readlink(filepath.Join(dir, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(driver)
}

// bindVFIO binds a device without a driver to vfio-pci. The device stays bound.
func bindVFIO(dir string) error {
	switch had := boundTo(dir); had {
	case vfioDriver:
		return nil
	case "":
	default:
		return fmt.Errorf("the kernel's driver %s has the device", had)
	}
	bus := filepath.Dir(filepath.Dir(dir))
	if _, err := os.Stat(filepath.Join(bus, "drivers", vfioDriver)); errors.Is(err, fs.ErrNotExist) {
		return errors.New("the modules vfio-pci and vfio_iommu_type1 are not loaded")
	}
	if err := os.WriteFile(filepath.Join(dir, "driver_override"), []byte(vfioDriver), 0); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bus, "drivers_probe"), []byte(filepath.Base(dir)), 0); err != nil {
		return err
	}
	if boundTo(dir) != vfioDriver {
		_ = os.WriteFile(filepath.Join(dir, "driver_override"), []byte("\n"), 0)
		return errors.New("vfio-pci does not take the device; the kernel's log says why")
	}
	return nil
}

// open opens the container, the group and the device.
func (v *vfioDevice) open(group, address string) (err error) {
	if v.container, err = unix.Open("/dev/vfio/vfio", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("/dev/vfio/vfio: %w", err)
	}
	if n, err := ioctl(v.container, vfioCheckExtension, vfioType1); err != nil || n == 0 {
		return errors.New("the module vfio_iommu_type1 is not loaded")
	}
	if v.group, err = unix.Open("/dev/vfio/"+group, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("IOMMU group %s: %w", group, err)
	}
	status := make([]byte, 8)
	binary.LittleEndian.PutUint32(status, uint32(len(status)))
	if err := ioctlBytes(v.group, vfioGroupGetStatus, status); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(status[4:])&vfioViable == 0 {
		return fmt.Errorf("IOMMU group %s holds other devices that vfio-pci does not have: give each window a PCI slot of its own", group)
	}
	container := binary.LittleEndian.AppendUint32(nil, uint32(v.container))
	if err := ioctlBytes(v.group, vfioGroupSetContain, container); err != nil {
		return fmt.Errorf("IOMMU group %s: %w", group, err)
	}
	if _, err := ioctl(v.container, vfioSetIOMMU, vfioType1); err != nil {
		return fmt.Errorf("IOMMU: %w; does it remap interrupts (intremap=on)?", err)
	}
	v.device, err = ioctlGet(v.group, vfioGroupGetDevice, append([]byte(address), 0))
	return err
}

// region returns the flags of a region of the device, its size and its offset in the device's file.
func (v *vfioDevice) region(index uint32) (flags uint32, size, offset uint64, err error) {
	b := make([]byte, vfioRegionSize)
	binary.LittleEndian.PutUint32(b, vfioRegionSize)
	binary.LittleEndian.PutUint32(b[8:], index)
	err = ioctlBytes(v.device, vfioGetRegion, b)
	return binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]), err
}

func (v *vfioDevice) mapRegion(index uint32) ([]byte, error) {
	flags, size, offset, err := v.region(index)
	switch {
	case err != nil:
		return nil, err
	case flags&vfioCanMap == 0 || size == 0 || size > 1<<30:
		return nil, fmt.Errorf("%d bytes that cannot be mapped", size)
	}
	return unix.Mmap(v.device, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// enableIRQs assigns eventfds to the first MSI-X vectors.
func (v *vfioDevice) enableIRQs(vectors int) error {
	_, _, config, err := v.region(vfioConfig)
	if err != nil {
		return err
	}
	var command [2]byte
	if _, err := unix.Pread(v.device, command[:], int64(config)+pciCommand); err != nil {
		return fmt.Errorf("PCI command: %w", err)
	}
	command[0] |= pciMemory | pciBusMaster
	if _, err := unix.Pwrite(v.device, command[:], int64(config)+pciCommand); err != nil {
		return fmt.Errorf("PCI command: %w", err)
	}
	index := uint32(vfioMSIX)
	there, err := v.vectors(index)
	if there == 0 && err == nil {
		index = vfioMSI
		there, err = v.vectors(index)
	}
	if err != nil {
		return fmt.Errorf("interrupts: %w", err)
	}
	n := min(vectors, there)
	if n == 0 {
		return errors.New("QEMU's device has no interrupt vectors")
	}
	set := make([]byte, vfioIRQSetSize, vfioIRQSetSize+4*n)
	for i, f := range []uint32{uint32(cap(set)), vfioEventfd, index, 0, uint32(n)} {
		binary.LittleEndian.PutUint32(set[4*i:], f)
	}
	for range n {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
		v.irqs = append(v.irqs, os.NewFile(uintptr(fd), "interrupt"))
		set = binary.LittleEndian.AppendUint32(set, uint32(fd))
	}
	if err := ioctlBytes(v.device, vfioSetIRQs, set); err != nil {
		return fmt.Errorf("%d interrupt vectors: %w", n, err)
	}
	return nil
}

// vectors returns the number of interrupts of a kind.
func (v *vfioDevice) vectors(index uint32) (int, error) {
	info := make([]byte, vfioIRQInfoSize)
	binary.LittleEndian.PutUint32(info, vfioIRQInfoSize)
	binary.LittleEndian.PutUint32(info[8:], index)
	err := ioctlBytes(v.device, vfioGetIRQ, info)
	return int(binary.LittleEndian.Uint32(info[12:])), err
}

// mapDMA maps memory of this process for the device. The memory does not move from then on.
func (v *vfioDevice) mapDMA(mem []byte, addr uint64) error {
	b := make([]byte, vfioMapSize)
	le := binary.LittleEndian
	le.PutUint32(b, vfioMapSize)
	le.PutUint32(b[4:], vfioReadWrite)
	le.PutUint64(b[8:], addressOf(mem))
	le.PutUint64(b[16:], addr)
	le.PutUint64(b[24:], uint64(len(mem)))
	return ioctlBytes(v.container, vfioMapDMA, b)
}

func (v *vfioDevice) unmapDMA(addr, size uint64) error {
	b := make([]byte, vfioUnmapSize)
	le := binary.LittleEndian
	le.PutUint32(b, vfioUnmapSize)
	le.PutUint64(b[8:], addr)
	le.PutUint64(b[16:], size)
	return ioctlBytes(v.container, vfioUnmapDMA, b)
}

// close releases the device.
func (v *vfioDevice) close() {
	for _, m := range [][]byte{v.shared, v.regs} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	for _, f := range v.irqs {
		_ = f.Close()
	}
	for _, fd := range []int{v.device, v.group, v.container} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	v.shared, v.regs, v.irqs = nil, nil, nil
	v.device, v.group, v.container = -1, -1, -1
}
