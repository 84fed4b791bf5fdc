package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/queues"
)

// dmaFile is a file with guest memory. A client passes it with each range that it maps, and with a
// vIOMMU it maps thousands of ranges, so one descriptor is kept for all of them.
type dmaFile struct {
	dev, ino uint64
	fd       int
	size     uint64
	refs     int
	extents  []*extent
}

// extent is a mapped part of a file. All ranges that lie inside it share the mapping.
type extent struct {
	from, to uint64 // in the file
	prot     int
	mem      *guestmem.Mapping
	refs     int
}

// extentUnit is the alignment of both ends of an extent; an extent may also end at the end of its
// file. Extents are this large because a guest with a vIOMMU maps single pages all over its memory,
// and the number of mappings in this process is limited.
const extentUnit = 1 << 30

// dmaRange is a range of DMA addresses with the memory behind it.
type dmaRange struct {
	vfiouser.Map
	file   *dmaFile // nil: the client passed no file, so the memory cannot be accessed
	extent *extent  // nil: not mapped
}

// dmaMap holds the memory that a client has mapped, in ascending order. The ranges do not overlap:
// package vfiouser refuses those that would.
type dmaMap struct {
	budget *guestmem.Budget // nil: this process maps nothing
	files  []*dmaFile
	ranges []dmaRange
}

// maxDMAFiles is the largest number of files with memory that a client may pass: each takes a
// descriptor of this process, which has few. vhost-user allows a guest the same number of memory
// regions.
const maxDMAFiles = 509

// checkMemory returns an error, after it has closed the file, if a client passed a file that is no
// memory. It must be called before a lock is taken that others wait for: close(2) of a file on FUSE
// waits for a program of the client's.
func checkMemory(m vfiouser.Map, fd int) error {
	if fd == vfiouser.NoFile {
		return nil
	}
	if err := guestmem.Check(fd); err != nil {
		return errors.Join(fmt.Errorf("memory %s: %w", m.Range, err), unix.Close(fd))
	}
	return nil
}

// add adds a range and its file, which checkMemory has checked; fd is vfiouser.NoFile if the range
// has none. It owns fd, even when it fails. The returned pointer is valid until the next change of d.
func (d *dmaMap) add(m vfiouser.Map, fd int) (_ *dmaRange, err error) {
	r := dmaRange{Map: m}
	if fd != vfiouser.NoFile {
		if r.file, err = d.open(fd); err != nil {
			return nil, fmt.Errorf("memory %s: %w", m.Range, err)
		}
	}
	switch {
	case r.file != nil && m.Offset+m.Size > r.file.size:
		err = fmt.Errorf("memory %s at file offset %#x: the file has only %#x bytes", m.Range, m.Offset, r.file.size)
	case len(d.ranges) >= vfiouser.MaxMaps:
		err = fmt.Errorf("memory %s: the guest has %d ranges mapped; have it register less memory at a time, or use huge pages: %w", m.Range, vfiouser.MaxMaps, unix.ENOSPC)
	}
	if err != nil {
		d.release(r)
		return nil, err
	}
	at := d.find(m.Addr)
	d.ranges = slices.Insert(d.ranges, at, r)
	return &d.ranges[at], nil
}

// find returns the index of the range that begins at an address, or the index to insert it at.
func (d *dmaMap) find(addr uint64) (at int) {
	at, _ = slices.BinarySearchFunc(d.ranges, addr, func(r dmaRange, a uint64) int { return cmp.Compare(r.Addr, a) })
	return at
}

// remove removes a range of addresses, also from the middle of larger ranges. It returns the ranges
// that it shortened, split or removed; the caller releases them once nothing uses their memory.
func (d *dmaMap) remove(r vfiouser.Range) (gone []dmaRange) {
	at := d.find(r.Addr)
	if at > 0 && d.ranges[at-1].Overlaps(r) {
		at--
	}
	var left []dmaRange
	end := at
	for ; end < len(d.ranges) && d.ranges[end].Overlaps(r); end++ {
		was := d.ranges[end]
		for _, part := range was.Without(r) {
			left = append(left, was.part(part))
		}
		if was.file != nil {
			gone = append(gone, was)
		}
	}
	d.ranges = slices.Replace(d.ranges, at, end, left...)
	return gone
}

// part returns a part of a range. It adds a reference to the range's file and extent.
func (r dmaRange) part(of vfiouser.Range) dmaRange {
	r.Offset += of.Addr - r.Addr
	r.Range = of
	if r.file != nil {
		r.file.refs++
	}
	if r.extent != nil {
		r.extent.refs++
	}
	return r
}

// open returns the dmaFile of a descriptor, with one more reference. It owns fd and closes it if
// the file is known already.
func (d *dmaMap) open(fd int) (*dmaFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	for _, f := range d.files {
		if f.dev == st.Dev && f.ino == st.Ino {
			f.refs++
			return f, unix.Close(fd)
		}
	}
	if len(d.files) >= maxDMAFiles {
		return nil, errors.Join(fmt.Errorf("the guest's memory is in %d files already; use fewer memory backends: %w", maxDMAFiles, unix.ENOSPC), unix.Close(fd))
	}
	f := &dmaFile{dev: st.Dev, ino: st.Ino, fd: fd, size: uint64(st.Size), refs: 1}
	d.files = append(d.files, f)
	return f, nil
}

// release drops the references of ranges to their extents and files.
func (d *dmaMap) release(ranges ...dmaRange) {
	for _, r := range ranges {
		if r.extent != nil {
			r.file.leave(r.extent)
		}
		if r.file == nil {
			continue
		}
		if r.file.refs--; r.file.refs == 0 {
			d.files = slices.DeleteFunc(d.files, func(o *dmaFile) bool { return o == r.file })
			_ = unix.Close(r.file.fd)
		}
	}
}

// leave drops a reference to an extent and unmaps the extent if that was the last.
func (f *dmaFile) leave(e *extent) {
	if e.refs--; e.refs == 0 {
		f.extents = slices.DeleteFunc(f.extents, func(o *extent) bool { return o == e })
		e.mem.Unmap()
	}
}

// enter returns an extent that contains a part of the file, with one more reference. It maps one
// unless there is one already.
func (f *dmaFile) enter(from, to uint64, prot int, budget *guestmem.Budget) (*extent, error) {
	for _, e := range f.extents {
		if e.from <= from && to <= e.to && e.prot == prot {
			e.refs++
			return e, nil
		}
	}
	e := &extent{from: from / extentUnit * extentUnit, prot: prot, refs: 1}
	e.to = min(f.size, (to+extentUnit-1)/extentUnit*extentUnit)
	var err error
	if e.mem, err = budget.Map(f.fd, e.from, e.to-e.from, prot); err != nil {
		return nil, err
	}
	f.extents = append(f.extents, e)
	return e, nil
}

// region maps a range and returns it as a region for the device. If the client lets the device only
// read the range, the mapping is read-only. The region's slice keeps the capacity of the extent, so
// that queues.Regions.With can merge it with the region that follows in addresses and in memory.
func (d *dmaMap) region(r *dmaRange) (queues.Region, error) {
	if r.extent == nil {
		prot := unix.PROT_READ
		if r.Flags&vfiouser.MapWrite != 0 {
			prot |= unix.PROT_WRITE
		}
		var err error
		if r.extent, err = r.file.enter(r.Offset, r.Offset+r.Size, prot, d.budget); err != nil {
			return queues.Region{}, fmt.Errorf("memory %s: %w", r.Range, err)
		}
	}
	return queues.Region{Addr: r.Addr, Mem: r.extent.mem.Mem[r.Offset-r.extent.from:][:r.Size]}, nil
}
