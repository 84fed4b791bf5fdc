package guestmem

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Mapping is a part of a file, mapped.
type Mapping struct {
	Mem []byte // what was asked for

	pages  []byte // with what lies around it in its first and last page
	budget *Budget
}

// Map maps size bytes of a file from an offset on. It is shared memory, kept out of core dumps and
// of child processes.
func (b *Budget) Map(fd int, offset, size uint64, prot int) (*Mapping, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if offset > math.MaxInt64 || size > math.MaxInt64-offset || uint64(st.Size) < offset+size {
		return nil, fmt.Errorf("%#x bytes at file offset %#x: the file has only %#x", size, offset, st.Size)
	}
	page := uint64(max(st.Blksize, 4096)) // on hugetlbfs the huge page's: such files can only be mapped by those
	from := offset / page * page
	length := (offset + size - from + page - 1) / page * page
	if err := b.charge(length); err != nil {
		return nil, err
	}
	pages, err := unix.Mmap(fd, int64(from), int(length), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		b.release(length)
		return nil, fmt.Errorf("mmap of %#x bytes at file offset %#x: %w", length, from, err)
	}
	_ = unix.Madvise(pages, unix.MADV_DONTDUMP)
	_ = unix.Madvise(pages, unix.MADV_DONTFORK)
	at := offset - from
	return &Mapping{Mem: pages[at : at+size : at+size], pages: pages, budget: b}, nil
}

// Unmap gives it up. Nobody uses its memory any more.
func (m *Mapping) Unmap() {
	if m.pages == nil {
		return
	}
	_ = unix.Munmap(m.pages)
	m.budget.release(uint64(len(m.pages)))
	m.pages, m.Mem = nil, nil
}

// Check accepts files whose pages the kernel itself provides: memfds and files on tmpfs or
// hugetlbfs. A page of any other file comes from a disk or, on FUSE, from a program that may never
// answer, and whoever touches it waits.
//
// fstatfs(2) would name the file system, but FUSE asks its program for the answer. The seals are
// the kernel's to tell, and only these two file systems have them.
func Check(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return fmt.Errorf("the file is not on tmpfs or hugetlbfs, nor a memfd (%w); use -object memory-backend-memfd,share=on, or a mem-path in /dev/shm or on hugetlbfs", err)
	}
	return nil
}
