//go:build !(armbe || arm64be || mips || mips64 || ppc || ppc64 || s390x || sparc64)

package queues

import (
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// The guarded functions access guest memory in such a way that a memory fault becomes a panic of
// this goroutine (debug.SetPanicOnFault), which is recovered. Without this, a truncated file behind
// a mapping would raise SIGBUS and end the process. The functions return false if the memory broke.
// Hosts are little-endian. Only in builds with -race a fault in an atomic still ends the process,
// because atomics then run in the race runtime.

// aligned reports whether b starts at a multiple of its length.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(len(b)) == 0
}

// recoverFault ends a guarded function. It restores the goroutine's setting, and turns a fault at
// an address within mem into ok = false. Any other panic continues.
func recoverFault(old bool, mem []byte, ok *bool) {
	debug.SetPanicOnFault(old)
	r := recover()
	if r == nil {
		return
	}
	if f, isFault := r.(interface{ Addr() uintptr }); isFault {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
		// The address is exact or that of the page, depending on the architecture.
		const page = 64 << 10
		if at := f.Addr(); at|(page-1) >= start && at-min(at, start) < uintptr(len(mem)) {
			*ok = false
			return
		}
	}
	panic(r)
}

// guardedCopy copies b to the start of mem, or the start of mem to b. mem is
// at least as long as b.
func guardedCopy(mem, b []byte, write bool) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	if write {
		copy(mem, b)
	} else {
		copy(b, mem)
	}
	return true
}

func guardedLoad32(mem []byte) (v uint32, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(mem)))), true
}

func guardedLoad64(mem []byte) (v uint64, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(mem)))), true
}

func guardedStore32(mem []byte, v uint32) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(mem))), v)
	return true
}

func guardedStore64(mem []byte, v uint64) (ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), v)
	return true
}

func guardedAdd64(mem []byte, delta uint64) (prev uint64, ok bool) {
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	return atomic.AddUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), delta) - delta, true
}

// Results of guardedSwap64.
type swapResult uint8

const (
	swapDone swapResult = iota
	swapBroken
	swapContended
)

// swapAttempts limits the races lost against a guest that rewrites the word all the time.
const swapAttempts = 1000

// guardedSwap64 compares and swaps, and returns the value that it compared.
func guardedSwap64(mem []byte, old, new uint64) (prev uint64, res swapResult) {
	ok := true
	defer func() {
		if !ok {
			res = swapBroken
		}
	}()
	defer recoverFault(debug.SetPanicOnFault(true), mem, &ok)
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(mem)))
	for range swapAttempts {
		if v := atomic.LoadUint64(p); v != old {
			return v, swapDone
		}
		if atomic.CompareAndSwapUint64(p, old, new) {
			return old, swapDone
		}
	}
	return 0, swapContended
}
