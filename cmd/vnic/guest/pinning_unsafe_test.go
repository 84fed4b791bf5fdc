package guest_test

import "unsafe"

// mappedAt returns the address of mapped memory, which is never on the Go heap.
func mappedAt(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
