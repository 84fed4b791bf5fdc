package arena

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Device addresses of a Memfd. They differ from all addresses in this process and are out of order.
// So code fails at once if it confuses the two kinds of addresses or assumes that pages are
// contiguous.
const (
	memfdBase = 1 << 32 // the file's second half
	memfdGap  = 1 << 40 // added for the first half
)

// Region is a range of device addresses backed by a range of the memfd.
type Region struct {
	Addr, Size, Offset uint64
}

// Memfd is memory for a client on the NIC's own host: one memfd, sealed against shrinking, that the
// device process maps.
type Memfd struct {
	file    *os.File
	mem     []byte
	regions []Region
	grown   bool
}

// NewMemfd creates a memfd of size bytes (rounded up to whole pages, at least two). Pages use
// memory only once they are accessed.
func NewMemfd(size int) (*Memfd, error) {
	half := uint64(max(1, pages(size)/2+pages(size)%2)) * PageSize
	total := 2 * half
	fd, err := unix.MemfdCreate("vnic-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	m := &Memfd{
		file:    os.NewFile(uintptr(fd), "vnic-memory"),
		regions: []Region{{Addr: memfdBase, Size: half, Offset: half}, {Addr: memfdBase + memfdGap, Size: half, Offset: 0}},
	}
	if err := m.setup(fd, int(total)); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd of %d bytes: %w", total, err), m.Close())
	}
	return m, nil
}

func (m *Memfd) setup(fd, total int) error {
	if err := unix.Ftruncate(fd, int64(total)); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	// The device refuses memory that could shrink while it is mapped (SIGBUS).
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	mem, err := unix.Mmap(fd, 0, total, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.mem = mem
	return nil
}

// File returns the memfd, to be passed to the device process. m keeps ownership of it.
func (m *Memfd) File() *os.File { return m.file }

// Regions returns the device addresses of the memfd.
func (m *Memfd) Regions() []Region { return m.regions }

// Grow returns the whole memfd. It succeeds only once.
func (m *Memfd) Grow(n int) (Chunk, error) {
	if m.grown || n > len(m.mem) {
		return Chunk{}, &ExhaustedError{Want: n, Limit: len(m.mem)}
	}
	m.grown = true
	addrs := make([]uint64, len(m.mem)/PageSize)
	for _, r := range m.regions {
		for off := uint64(0); off < r.Size; off += PageSize {
			addrs[(r.Offset+off)/PageSize] = r.Addr + off
		}
	}
	return Chunk{Mem: m.mem, Addrs: addrs}, nil
}

// Close unmaps and closes the memfd.
func (m *Memfd) Close() error {
	var err error
	if m.mem != nil {
		err = unix.Munmap(m.mem)
		m.mem = nil
	}
	return errors.Join(err, m.file.Close())
}
