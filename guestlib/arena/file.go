package arena

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is memory in a named file that the device process maps too, as configured for an attachment
// of the kernel's vsock. It is for a client on the NIC's own host. Device addresses are offsets in
// the file.
type File struct {
	mem   []byte
	grown bool
}

// OpenFile maps a file whose size is a whole number of pages.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	if fi.Size() == 0 || fi.Size()%PageSize != 0 {
		return nil, fmt.Errorf("memory file %s has %d bytes, want whole pages; make it as large as the layout in the NIC's configuration", path, fi.Size())
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory file %s: %w", path, os.NewSyscallError("mmap", err))
	}
	return &File{mem: mem}, nil
}

// Grow returns the whole file. It succeeds only once.
func (f *File) Grow(n int) (Chunk, error) {
	if f.grown || n > len(f.mem) {
		return Chunk{}, &ExhaustedError{Want: n, Limit: len(f.mem)}
	}
	f.grown = true
	addrs := make([]uint64, len(f.mem)/PageSize)
	for i := range addrs {
		addrs[i] = uint64(i) * PageSize
	}
	return Chunk{Mem: f.mem, Addrs: addrs}, nil
}

// Close unmaps the file.
func (f *File) Close() error {
	if f.mem == nil {
		return errors.New("memory file: closed already")
	}
	mem := f.mem
	f.mem = nil
	return unix.Munmap(mem)
}
