package window

import "unsafe"

// store32 writes a device register with one plain store: an atomic one of package sync/atomic would
// be an exchange, which reads as well. The store of the producer index before it is an exchange and
// has completed. Not inlined, so that it is done exactly once and here.
//
//go:noinline
func store32(m []byte, off int, v uint32) {
	*(*uint32)(unsafe.Pointer(&m[off : off+4][0])) = v
}

// load32 reads a device register with one plain load.
//
//go:noinline
func load32(m []byte, off int) uint32 { return *(*uint32)(unsafe.Pointer(&m[off : off+4][0])) }

// addressOf is where memory, at least a byte of it, lies in this process.
func addressOf(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&m[0]))) }
