package window

import "unsafe"

// store32 writes a device register with one plain store. An atomic store of package sync/atomic
// would be an exchange, which also reads. The earlier store of the producer index is an exchange
// and has completed. store32 is not inlined, so that the compiler does the store exactly once and
// at this point.
//
//go:noinline
func store32(m []byte, off int, v uint32) {
	*(*uint32)(unsafe.Pointer(&m[off : off+4][0])) = v
}

// load32 reads a device register with one plain load.
//
//go:noinline
func load32(m []byte, off int) uint32 { return *(*uint32)(unsafe.Pointer(&m[off : off+4][0])) }

// addressOf returns the address of m, which has at least one byte, in this process.
func addressOf(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&m[0]))) }
