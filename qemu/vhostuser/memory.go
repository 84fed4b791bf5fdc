package vhostuser

import (
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
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

// matches reports whether r and fd are the same region of the same file as m. A front end may announce a
// region twice.
func (m *Mapping) matches(r Region, fd int) bool {
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

// This file handles the messages about the guest's memory.

func (c *Session) setMemTable(m *Message) error {
	rs, err := ParseMemTable(m.Payload)
	if err != nil {
		return err
	}
	if len(rs) != m.FDs() {
		return fmt.Errorf("%d regions with %d descriptors", len(rs), m.FDs())
	}
	next := State{}
	var maps []*Mapping
	for _, r := range rs {
		err := next.checkRegion(r)
		var mp *Mapping
		if err == nil {
			mp, err = c.mapping(r, m)
		}
		if err != nil {
			c.closeUnused(maps)
			return err
		}
		next.Regions, maps = append(next.Regions, r), append(maps, mp)
	}
	return c.replaceMemory(next.Regions, maps)
}

// addRegion adds one region. It acknowledges a region that is known already: QEMU before 8.0 sends
// each region once for each of a port's queue pairs.
func (c *Session) addRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	refusal := c.State.checkRegion(r)
	if len(c.State.Regions) >= MaxMemSlots {
		refusal = fmt.Errorf("more than %d memory regions", MaxMemSlots)
	}
	if refusal != nil && !slices.Contains(c.State.Regions, r) {
		return refusal
	}
	mp, err := c.mapping(r, m)
	switch {
	case err != nil:
		return err
	case slices.Contains(c.maps, mp):
		return nil
	case refusal != nil: // the known region has another file
		mp.close()
		return refusal
	}
	return c.replaceMemory(append(slices.Clone(c.State.Regions), r), append(slices.Clone(c.maps), mp))
}

// removeRegion removes one region. It acknowledges an unknown region: QEMU may remove a region once
// for each queue pair, too.
func (c *Session) removeRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	i := c.State.findRegion(r)
	if i < 0 {
		return nil
	}
	return c.replaceMemory(slices.Delete(slices.Clone(c.State.Regions), i, i+1), slices.Delete(slices.Clone(c.maps), i, i+1))
}

// parseSlot reads the payload of ADD_MEM_REG and REM_MEM_REG: eight bytes of
// padding and one region.
func parseSlot(m *Message) (Region, error) {
	if len(m.Payload) < 8+RegionSize {
		return Region{}, fmt.Errorf("payload of %d bytes, want %d", len(m.Payload), 8+RegionSize)
	}
	return parseRegion(m.Payload[8:]), nil
}

// mapping returns the mapping of a region whose file is the next descriptor of the message: the
// existing one, or a new one. If it refuses the region the message keeps the descriptor.
func (c *Session) mapping(r Region, m *Message) (*Mapping, error) {
	fd := m.TakeFD()
	if fd == eventfd.None {
		return nil, fmt.Errorf("memory region %#x+%#x has no descriptor", r.GPA, r.Size)
	}
	if i := slices.IndexFunc(c.maps, func(o *Mapping) bool { return o.matches(r, fd) }); i >= 0 {
		_ = unix.Close(fd)
		return c.maps[i], nil
	}
	mp, err := mapRegion(r, fd, c.memory)
	if err != nil {
		m.giveBack(fd)
	}
	return mp, err
}

// replaceMemory passes the new mappings to the device, then unmaps those that are no longer used.
func (c *Session) replaceMemory(regions []Region, maps []*Mapping) error {
	old := c.maps
	c.State.Regions, c.maps = regions, maps
	err := c.dev.SetMemory(&c.State, maps)
	c.closeUnused(old)
	return err
}

// closeUnused closes those of maps that are not in c.maps.
func (c *Session) closeUnused(maps []*Mapping) {
	for _, mp := range maps {
		if !slices.Contains(c.maps, mp) {
			mp.close()
		}
	}
}
