package vhostuser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Mapping is one guest memory region mapped into this process.
type Mapping struct {
	Region
	Mem   []byte // Size bytes; guest-physical GPA is Mem[0]
	Dev   uint64 // of the file behind it
	Ino   uint64
	file  int    // descriptor of the file, for whoever takes the conversation over
	whole []byte // what munmap needs: the file from offset 0
}

// CheckMemory accepts files whose pages the kernel itself provides: memfds and files on
// tmpfs or hugetlbfs. A page of any other file comes from a disk or, on FUSE, from a
// program that may never answer, and whoever touches it waits.
//
// fstatfs(2) would name the file system, but FUSE asks its program for the answer. The
// seals are the kernel's to tell, and only these two file systems have them.
func CheckMemory(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return fmt.Errorf("the file is not on tmpfs or hugetlbfs, nor a memfd (%w); use -object memory-backend-memfd,share=on, or a mem-path in /dev/shm or on hugetlbfs", err)
	}
	return nil
}

// mapRegion maps a region and owns fd if it succeeds. The mapping starts at file offset 0 because
// huge page files can only be mapped at multiples of their page size, while QEMU splits low memory
// at 0xa0000.
func mapRegion(r Region, fd int) (*Mapping, error) {
	if err := CheckMemory(fd); err != nil {
		return nil, fmt.Errorf("memory region %#x+%#x: %w", r.GPA, r.Size, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("memory region %#x+%#x: fstat: %w", r.GPA, r.Size, err)
	}
	end := r.Offset + r.Size
	if uint64(st.Size) < end {
		return nil, fmt.Errorf("memory region %#x+%#x at file offset %#x: the file has only %#x bytes", r.GPA, r.Size, r.Offset, st.Size)
	}
	page := uint64(max(st.Blksize, 1)) // on hugetlbfs the huge page's
	length := (end + page - 1) / page * page
	whole, err := unix.Mmap(fd, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory region %#x+%#x: mmap: %w", r.GPA, r.Size, err)
	}
	// Guest RAM belongs neither into our core dumps nor into our children.
	_ = unix.Madvise(whole, unix.MADV_DONTDUMP)
	_ = unix.Madvise(whole, unix.MADV_DONTFORK)
	return &Mapping{Region: r, Mem: whole[r.Offset:end:end], Dev: st.Dev, Ino: st.Ino, file: fd, whole: whole}, nil
}

func (m *Mapping) unmap() {
	if m.whole != nil {
		_ = unix.Munmap(m.whole)
		_ = unix.Close(m.file)
		m.whole, m.Mem = nil, nil
	}
}
