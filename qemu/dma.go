package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/queues"
)

// dmaFile is a file with guest memory. A client passes it with each range that it maps, which with
// a vIOMMU are thousands: it is kept, and mapped, once.
type dmaFile struct {
	dev, ino uint64
	fd       int
	size     uint64
	refs     int
	// The whole file, once as it is and once for reading only: what the client lets the device only
	// read, the device cannot write. nil: not needed so far.
	write, read []byte
}

// dmaRange is a range of DMA addresses with the memory behind it.
type dmaRange struct {
	vfiouser.Map
	file *dmaFile // nil: it cannot be reached
}

// dmaMap is the memory that a client has mapped, in ascending order. The ranges do not overlap: the
// conversation sees to that.
type dmaMap struct {
	files  []*dmaFile
	ranges []dmaRange
}

// maxDMAFiles is how many files with memory a client may have: each takes a descriptor and two
// mappings of ours, which are few. vhost-user gives a guest as many pieces of memory.
const maxDMAFiles = 509

// add takes a range over with its file, also when it fails; vfiouser.NoFile: there is none.
func (d *dmaMap) add(m vfiouser.Map, fd int) (r dmaRange, err error) {
	r.Map = m
	if fd != vfiouser.NoFile {
		if r.file, err = d.open(fd); err != nil {
			return r, fmt.Errorf("memory %s: %w", m.Range, err)
		}
	}
	switch {
	case r.file != nil && m.Offset+m.Size > r.file.size:
		err = fmt.Errorf("memory %s at file offset %#x: the file has only %#x bytes", m.Range, m.Offset, r.file.size)
	case len(d.ranges) >= vfiouser.MaxMaps:
		err = fmt.Errorf("memory %s: the guest has %d ranges mapped; have it register less memory at a time, or use huge pages: %w", m.Range, vfiouser.MaxMaps, unix.ENOSPC)
	}
	if err != nil {
		d.release(r.file)
		return r, err
	}
	at := d.find(m.Addr)
	d.ranges = slices.Insert(d.ranges, at, r)
	return r, nil
}

// find returns where the range at an address stands or would stand.
func (d *dmaMap) find(addr uint64) (at int) {
	at, _ = slices.BinarySearchFunc(d.ranges, addr, func(r dmaRange, a uint64) int { return cmp.Compare(r.Addr, a) })
	return at
}

// remove takes a range of addresses away, also out of larger ones, and returns the files of those
// that it was in, which the caller releases when nobody uses the memory any more.
func (d *dmaMap) remove(r vfiouser.Range) (files []*dmaFile) {
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
			files = append(files, was.file)
		}
	}
	d.ranges = slices.Replace(d.ranges, at, end, left...)
	return files
}

// part is a part of a range, and one more use of its file.
func (r dmaRange) part(of vfiouser.Range) dmaRange {
	r.Offset += of.Addr - r.Addr
	r.Range = of
	if r.file != nil {
		r.file.refs++
	}
	return r
}

// open notes one use of a file, which it takes over.
func (d *dmaMap) open(fd int) (*dmaFile, error) {
	if err := vhostuser.CheckMemory(fd); err != nil {
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

// release gives one use of each of files back; nil is none.
func (d *dmaMap) release(files ...*dmaFile) {
	for _, f := range files {
		d.releaseOne(f)
	}
}

func (d *dmaMap) releaseOne(f *dmaFile) {
	if f == nil {
		return
	}
	if f.refs--; f.refs > 0 {
		return
	}
	d.files = slices.DeleteFunc(d.files, func(o *dmaFile) bool { return o == f })
	for _, m := range [][]byte{f.write, f.read} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	_ = unix.Close(f.fd)
}

// memory returns the whole file of a range, mapped as the range is to be used.
func (r *dmaRange) memory() ([]byte, error) {
	at, prot := &r.file.write, unix.PROT_READ|unix.PROT_WRITE
	if r.Flags&vfiouser.MapWrite == 0 {
		at, prot = &r.file.read, unix.PROT_READ
	}
	if *at == nil {
		m, err := unix.Mmap(r.file.fd, 0, int(r.file.size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err != nil {
			return nil, fmt.Errorf("memory %s: mmap: %w", r.Range, err)
		}
		// Guest RAM belongs neither into our core dumps nor into our children.
		_ = unix.Madvise(m, unix.MADV_DONTDUMP)
		_ = unix.Madvise(m, unix.MADV_DONTFORK)
		*at = m
	}
	return *at, nil
}

// region is a range as the device sees it. Behind it the mapping goes on, so that what follows in
// addresses and in memory becomes one with it.
func (r *dmaRange) region() (queues.Region, error) {
	mem, err := r.memory()
	if err != nil {
		return queues.Region{}, err
	}
	return queues.Region{Addr: r.Addr, Mem: mem[r.Offset:][:r.Size]}, nil
}
