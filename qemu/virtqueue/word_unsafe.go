//go:build !(armbe || arm64be || mips || mips64 || ppc || ppc64 || s390x || sparc64)

package virtqueue

import (
	"sync/atomic"
	"unsafe"
)

// These functions access words that driver and device share. Hosts are little-endian. Slices must
// be in mapped pages and at least as long as the word.

// aligned reports whether b begins at a multiple of n.
func aligned(b []byte, n uintptr) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%n == 0 }

// within reports whether an address is in b.
func within(b []byte, addr uintptr) bool {
	return addr-uintptr(unsafe.Pointer(unsafe.SliceData(b))) < uintptr(len(b))
}

// load32 and store32 are atomic and sequentially consistent. b must begin at a multiple of 4.
func load32(b []byte) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))))
}

func store32(b []byte, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), v)
}

func load64(b []byte) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))))
}

func store64(b []byte, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), v)
}

// around returns the aligned 32-bit word that contains the two bytes at b, and their shift in bits
// within it. b must begin at a multiple of 2, so the word is in the same page.
func around(b []byte) (word *uint32, shift uint) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	low := uintptr(p) & 2
	return (*uint32)(unsafe.Add(p, -int(low))), uint(low) * 8
}

func load16(b []byte) uint16 {
	w, shift := around(b)
	return uint16(atomic.LoadUint32(w) >> shift)
}

// storeAttempts bounds how often store16 retries when a guest keeps changing the other half.
const storeAttempts = 1000

// store16 stores two bytes and preserves the other half of the word, which the guest may own.
func store16(b []byte, v uint16) {
	w, shift := around(b)
	for range storeAttempts {
		old := atomic.LoadUint32(w)
		if atomic.CompareAndSwapUint32(w, old, old&^(0xffff<<shift)|uint32(v)<<shift) {
			return
		}
	}
}
