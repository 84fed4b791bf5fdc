package arena

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// minChunk is the smallest chunk in bytes. Small allocations share a chunk, so that memory is
	// not pinned for each of them.
	minChunk = 2 << 20

	pagemapPresent = 1 << 63
	pagemapPFN     = 1<<55 - 1 // Documentation/admin-guide/mm/pagemap.rst: bits 0–54
)

// GuestRAM provides chunks of this guest's own memory. Device addresses are guest-physical
// addresses.
type GuestRAM struct {
	limit  int // bytes, 0 = none
	used   int
	chunks []guestChunk

	// Replaced in tests.
	pin     func(mem []byte) (io.Closer, error)
	resolve func(mem []byte) ([]uint64, error)
}

type guestChunk struct {
	mem []byte
	pin io.Closer
}

// NewGuestRAM returns a source of at most limit bytes of pinned guest memory; 0 means only the
// kernel's limits.
func NewGuestRAM(limit int) *GuestRAM {
	return &GuestRAM{limit: limit, pin: pinBuffers, resolve: func(mem []byte) ([]uint64, error) {
		return readPagemap("/proc/self/pagemap", mem)
	}}
}

// Grow maps, pins and resolves a chunk of at least n bytes. Errors are *PinError or
// *ExhaustedError.
func (g *GuestRAM) Grow(n int) (Chunk, error) {
	size := pages(max(n, minChunk)) * PageSize
	if g.limit > 0 && g.used+size > g.limit {
		size = pages(n) * PageSize
		if g.used+size > g.limit {
			return Chunk{}, &ExhaustedError{Want: n, Limit: g.limit}
		}
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return Chunk{}, &PinError{"mmap", "the guest is short of memory: free some or give the guest more RAM", err}
	}
	pin, addrs, err := g.prepare(mem)
	if err != nil {
		return Chunk{}, errors.Join(err, unix.Munmap(mem))
	}
	g.chunks = append(g.chunks, guestChunk{mem, pin})
	g.used += size
	return Chunk{Mem: mem, Addrs: addrs}, nil
}

func (g *GuestRAM) prepare(mem []byte) (io.Closer, []uint64, error) {
	// A kernel without huge pages returns EINVAL for NOHUGEPAGE: then there is nothing to turn off.
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, nil, &PinError{"madvise", "the kernel refuses MADV_NOHUGEPAGE on anonymous memory: use a kernel with it", err}
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, nil, &PinError{"madvise", "the kernel refuses MADV_DONTFORK: use a kernel with it", err}
	}
	if err := populate(mem); err != nil {
		return nil, nil, &PinError{"populate", "the guest is short of memory: free some or give the guest more RAM", err}
	}
	pin, err := g.pin(mem)
	if err != nil {
		return nil, nil, &PinError{"pin", pinRemedy(err, len(mem)), err}
	}
	addrs, err := g.resolve(mem)
	if err != nil {
		return nil, nil, errors.Join(err, pin.Close())
	}
	return pin, addrs, nil
}

// populate allocates every page of mem now. Pinning would do that too, but then a shortage of
// memory could not be told from a refused pin.
func populate(mem []byte) error {
	err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		for i := 0; i < len(mem); i += PageSize {
			mem[i] = 0
		}
		return nil
	}
	return err
}

// readPagemap returns the physical page address of each page of mem.
func readPagemap(path string, mem []byte) ([]uint64, error) {
	const capability = "reading page addresses needs CAP_SYS_ADMIN: run as root in the guest or grant the capability"
	f, err := os.Open(path)
	if err != nil {
		return nil, &PinError{"pagemap", capability, err}
	}
	defer f.Close()
	entries := make([]byte, 8*pages(len(mem)))
	if _, err := f.ReadAt(entries, int64(baseAddress(mem)/PageSize*8)); err != nil {
		return nil, &PinError{"pagemap", capability, err}
	}
	addrs := make([]uint64, len(entries)/8)
	for i := range addrs {
		e := binary.NativeEndian.Uint64(entries[8*i:])
		switch {
		case e&pagemapPresent == 0:
			return nil, &PinError{
				"pagemap", "the pinned page is not present: this kernel's pins do not hold, use Linux 5.10 or later",
				fmt.Errorf("page %d of %d has entry %#x", i, len(addrs), e),
			}
		case e&pagemapPFN == 0: // the kernel hides frame numbers from readers without the capability
			return nil, &PinError{"pagemap", capability, fmt.Errorf("page %d of %d has no frame number", i, len(addrs))}
		}
		addrs[i] = e & pagemapPFN * PageSize
	}
	return addrs, nil
}

func pinRemedy(err error, n int) string {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "the guest kernel has no io_uring (CONFIG_IO_URING): use a kernel with it, Debian's has"
	case errors.Is(err, unix.EPERM):
		return "io_uring is not allowed: set sysctl kernel.io_uring_disabled=0, or run as root with CAP_SYS_ADMIN, outside a seccomp filter that forbids io_uring"
	case errors.Is(err, unix.ENOMEM):
		return fmt.Sprintf("%d bytes do not fit the locked-memory limit: raise it (ulimit -l, RLIMIT_MEMLOCK) or grant CAP_IPC_LOCK", n)
	}
	return "pinning needs io_uring buffer registration (Linux 5.1 or later, sysctl kernel.io_uring_disabled=0)"
}

// Close unpins and unmaps all chunks.
func (g *GuestRAM) Close() error {
	var errs []error
	for _, c := range g.chunks {
		errs = append(errs, c.pin.Close(), unix.Munmap(c.mem))
	}
	g.chunks, g.used = nil, 0
	return errors.Join(errs...)
}
