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

// dmaFile is a file with guest memory. A client passes it with each range that it maps, which with
// a vIOMMU are thousands: it is kept once.
type dmaFile struct {
	dev, ino uint64
	fd       int
	size     uint64
	refs     int
	extents  []*extent
}

// extent is a part of a file that is mapped, for all ranges inside it.
type extent struct {
	from, to uint64 // in the file
	prot     int
	mem      *guestmem.Mapping
	refs     int
}

// extentUnit is what the ends of extents are multiples of, or are the file's: a guest with a vIOMMU
// maps single pages, all over its memory, and each mapping of ours counts.
const extentUnit = 1 << 30

// dmaRange is a range of DMA addresses with the memory behind it.
type dmaRange struct {
	vfiouser.Map
	file   *dmaFile // nil: it cannot be reached
	extent *extent  // nil: it is not mapped
}

// dmaMap is the memory that a client has mapped, in ascending order. The ranges do not overlap: the
// conversation sees to that.
type dmaMap struct {
	budget *guestmem.Budget // nil: nothing is mapped here
	files  []*dmaFile
	ranges []dmaRange
}

// maxDMAFiles is how many files with memory a client may have: each takes a descriptor of ours,
// which are few. vhost-user gives a guest as many pieces of memory.
const maxDMAFiles = 509

// add takes a range over with its file, also when it fails; vfiouser.NoFile: there is none. What it
// returns is good until the next change.
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

// find returns where the range at an address stands or would stand.
func (d *dmaMap) find(addr uint64) (at int) {
	at, _ = slices.BinarySearchFunc(d.ranges, addr, func(r dmaRange, a uint64) int { return cmp.Compare(r.Addr, a) })
	return at
}

// remove takes a range of addresses away, also out of larger ones, and returns those that it was in,
// which the caller releases when nobody uses the memory any more.
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

// part is a part of a range, and one more use of its file and its extent.
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

// open notes one use of a file, which it takes over.
func (d *dmaMap) open(fd int) (*dmaFile, error) {
	if err := guestmem.Check(fd); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
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

// release gives up what ranges used.
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

// leave gives up one use of an extent.
func (f *dmaFile) leave(e *extent) {
	if e.refs--; e.refs == 0 {
		f.extents = slices.DeleteFunc(f.extents, func(o *extent) bool { return o == e })
		e.mem.Unmap()
	}
}

// enter returns an extent that a part of the file lies in, and notes one use of it.
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

// region maps a range, and is it as the device sees it: what the client lets the device only read,
// the device cannot write. Behind it the mapping goes on, so that what follows in addresses and in
// memory becomes one with it.
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
