package arena

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Mapper maps memory of this process for a device, at device addresses behind an IOMMU. Memory and
// addresses are whole pages. Mapped memory does not move until it is unmapped.
type Mapper interface {
	MapDMA(mem []byte, addr uint64) error
	UnmapDMA(addr, size uint64) error
}

const (
	// iommuBase is the first device address. It is above the range that an IOMMU reserves for
	// interrupts.
	iommuBase = 1 << 32
	// hugePage is the size that an IOMMU can map as one page if the memory is contiguous.
	hugePage = 2 << 20
)

// IOMMU provides chunks of this guest's own memory to a device behind an IOMMU. The driver needs no
// permission to read page addresses, and the device cannot access memory that was not mapped for
// it.
type IOMMU struct {
	m      Mapper
	limit  int // bytes, 0 = none
	used   int
	chunks []iommuChunk
}

type iommuChunk struct {
	whole, mem []byte // the mapping, and its aligned part
	addr       uint64
}

// NewIOMMU returns a source of at most limit bytes; 0 means only the kernel's limits.
func NewIOMMU(m Mapper, limit int) *IOMMU { return &IOMMU{m: m, limit: limit} }

// Grow maps a chunk of at least n bytes, in this process and for the device. Errors are *PinError
// or *ExhaustedError.
func (s *IOMMU) Grow(n int) (Chunk, error) {
	size := (max(n, minChunk) + hugePage - 1) / hugePage * hugePage
	if s.limit > 0 && s.used+size > s.limit {
		return Chunk{}, &ExhaustedError{Want: n, Limit: s.limit}
	}
	whole, err := unix.Mmap(-1, 0, size+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return Chunk{}, &PinError{"mmap", "the guest is short of memory: free some or give the guest more RAM", err}
	}
	c := iommuChunk{whole: whole, addr: iommuBase + uint64(s.used)}
	off := -baseAddress(whole) & (hugePage - 1)
	c.mem = whole[off:][:size:size]
	if err := s.give(&c); err != nil {
		return Chunk{}, errors.Join(err, unix.Munmap(whole))
	}
	s.chunks = append(s.chunks, c)
	s.used += size
	addrs := make([]uint64, size/PageSize)
	for i := range addrs {
		addrs[i] = c.addr + uint64(i)*PageSize
	}
	return Chunk{Mem: c.mem, Addrs: addrs}, nil
}

func (s *IOMMU) give(c *iommuChunk) error {
	_ = unix.Madvise(c.mem, unix.MADV_HUGEPAGE) // if it fails (no huge pages), the kernel maps more and smaller pages
	if err := unix.Madvise(c.mem, unix.MADV_DONTFORK); err != nil {
		return &PinError{"madvise", "the kernel refuses MADV_DONTFORK: use a kernel with it", err}
	}
	if err := populate(c.mem); err != nil {
		return &PinError{"populate", "the guest is short of memory: free some or give the guest more RAM", err}
	}
	if err := s.m.MapDMA(c.mem, c.addr); err != nil {
		return &PinError{"IOMMU", "the memory does not fit the locked-memory limit (ulimit -l), or the IOMMU's addresses are used up", err}
	}
	return nil
}

// Close unmaps all chunks, for the device and in this process.
func (s *IOMMU) Close() error {
	var errs []error
	for _, c := range s.chunks {
		errs = append(errs, s.m.UnmapDMA(c.addr, uint64(len(c.mem))), unix.Munmap(c.whole))
	}
	s.chunks, s.used = nil, 0
	return errors.Join(errs...)
}
