//go:build !(armbe || arm64be || mips || mips64 || ppc || ppc64 || s390x || sparc64)

package ring

import (
	"sync/atomic"
	"unsafe"
)

// Mem implements Bytes over memory mapped by this process, for the driver's side. Its first byte
// must be 8-byte aligned. Hosts are little-endian.
type Mem []byte

// word returns the address of the size aligned bytes at off, or nil.
func (m Mem) word(off uint64, size uint64) unsafe.Pointer {
	n := uint64(len(m))
	if off > n || size > n-off {
		return nil
	}
	p := unsafe.Pointer(&m[off])
	if uintptr(p)%uintptr(size) != 0 {
		return nil
	}
	return p
}

// ReadAt copies len(dst) bytes at off.
func (m Mem) ReadAt(off uint64, dst []byte) error {
	n := uint64(len(m))
	if off > n || uint64(len(dst)) > n-off {
		return ErrBounds
	}
	copy(dst, m[off:])
	return nil
}

// WriteAt copies src to off.
func (m Mem) WriteAt(off uint64, src []byte) error {
	n := uint64(len(m))
	if off > n || uint64(len(src)) > n-off {
		return ErrBounds
	}
	copy(m[off:], src)
	return nil
}

// Load32 loads the word at off.
func (m Mem) Load32(off uint64) (uint32, error) {
	p := m.word(off, 4)
	if p == nil {
		return 0, ErrBounds
	}
	return atomic.LoadUint32((*uint32)(p)), nil
}

// Store32 stores the word at off.
func (m Mem) Store32(off uint64, v uint32) error {
	p := m.word(off, 4)
	if p == nil {
		return ErrBounds
	}
	atomic.StoreUint32((*uint32)(p), v)
	return nil
}

// Load64 loads the double word at off.
func (m Mem) Load64(off uint64) (uint64, error) {
	p := m.word(off, 8)
	if p == nil {
		return 0, ErrBounds
	}
	return atomic.LoadUint64((*uint64)(p)), nil
}

// Store64Release stores the double word at off.
func (m Mem) Store64Release(off uint64, v uint64) error {
	p := m.word(off, 8)
	if p == nil {
		return ErrBounds
	}
	atomic.StoreUint64((*uint64)(p), v)
	return nil
}
