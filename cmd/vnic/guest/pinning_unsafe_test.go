package guest_test

import "unsafe"

// mappedAt is where mapped memory, which is never on the Go heap, lies.
func mappedAt(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
