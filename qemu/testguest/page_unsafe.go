package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pattern fills the page.
const pattern = 0x0123456789abcdef

// patternPage fills a locked page with pattern and returns its guest-physical address.
func patternPage() (uint64, error) {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_LOCKED)
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(page); i += 8 {
		binary.LittleEndian.PutUint64(page[i:], pattern)
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	virtual := uintptr(unsafe.Pointer(unsafe.SliceData(page)))
	var entry [8]byte
	if _, err := f.ReadAt(entry[:], int64(virtual/4096*8)); err != nil {
		return 0, err
	}
	v := binary.LittleEndian.Uint64(entry[:])
	const present, frame = 1 << 63, 1<<55 - 1
	if v&present == 0 || v&frame == 0 {
		return 0, fmt.Errorf("pagemap entry %#x", v)
	}
	return v & frame * 4096, nil
}
