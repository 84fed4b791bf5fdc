package vhosttest

import (
	"sync/atomic"
	"unsafe"
)

// load32 and store32 access words that driver and device share. b must begin at a multiple of 4.
func load32(b []byte) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))))
}

func store32(b []byte, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), v)
}
