package vhostuser

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
)

// Mapping is one guest memory region.
type Mapping struct {
	Region
	Mem []byte // Size bytes; Mem[0] is at guest-physical address GPA. nil: Serve has no budget
	Dev uint64 // device number of the file
	Ino uint64 // inode number of the file

	file int // descriptor of the file; a Relay passes it to workers
	mem  *guestmem.Mapping
}

// mapRegion returns a new Mapping, which owns fd. If it fails the caller still owns fd.
func mapRegion(r Region, fd int, budget *guestmem.Budget) (*Mapping, error) {
	m := &Mapping{Region: r, file: fd}
	if err := m.open(budget); err != nil {
		return nil, fmt.Errorf("memory region %#x+%#x: %w", r.GPA, r.Size, err)
	}
	return m, nil
}

func (m *Mapping) open(budget *guestmem.Budget) (err error) {
	if err := guestmem.Check(m.file); err != nil {
		return err
	}
	if m.Dev, m.Ino, err = identify(m.file); err != nil || budget == nil {
		return err
	}
	if m.mem, err = budget.Map(m.file, m.Offset, m.Size, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		m.Mem = m.mem.Mem
	}
	return err
}

// identify returns the device and inode numbers of a descriptor's file.
func identify(fd int) (dev, ino uint64, err error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return 0, 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Dev, st.Ino, nil
}

// is reports whether r and fd are the same region of the same file as m. A front end may announce a
// region twice.
func (m *Mapping) is(r Region, fd int) bool {
	dev, ino, err := identify(fd)
	return err == nil && m.Region == r && m.Dev == dev && m.Ino == ino
}

func (m *Mapping) close() {
	if m.mem != nil {
		m.mem.Unmap()
	}
	_ = unix.Close(m.file)
	m.Mem = nil
}
