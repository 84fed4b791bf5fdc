package vfiouser

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Flags of a Map.
const (
	MapRead  uint32 = 1 << 0
	MapWrite uint32 = 1 << 1
)

const (
	mapSize   = 32
	unmapSize = 24
)

// Range is a range of the client's DMA addresses.
type Range struct{ Addr, Size uint64 } // bytes

// everything covers all addresses that a range can have: none contains the last address (ParseMap).
var everything = Range{0, math.MaxUint64}

// Contains reports whether o lies inside r. Neither may wrap.
func (r Range) Contains(o Range) bool { return r.Addr <= o.Addr && o.last() <= r.last() }

func (r Range) String() string { return fmt.Sprintf("%#x+%#x", r.Addr, r.Size) }

// last returns the last address of a range. Unlike the end it cannot overflow.
func (r Range) last() uint64 { return r.Addr + (r.Size - 1) }

// Overlaps reports whether two ranges that do not wrap share an address.
func (r Range) Overlaps(o Range) bool { return r.Addr <= o.last() && o.Addr <= r.last() }

// Without returns what is left of r after o is removed: nothing, one range, or one on each side.
func (r Range) Without(o Range) (left []Range) {
	if !r.Overlaps(o) {
		return []Range{r}
	}
	if r.Addr < o.Addr {
		left = append(left, Range{r.Addr, o.Addr - r.Addr})
	}
	if r.last() > o.last() {
		left = append(left, Range{o.last() + 1, r.last() - o.last()})
	}
	return left
}

// ok returns an error if a range is empty or wraps.
func (r Range) ok() error {
	if r.Size == 0 || r.last() < r.Addr {
		return fmt.Errorf("the range %s is empty or wraps", r)
	}
	return nil
}

// Map is the body of DMA_MAP: memory of the client, at Offset bytes in the file that comes with the
// message. Without a file the memory cannot be accessed.
type Map struct {
	Flags  uint32
	Offset uint64
	Range
}

// Append appends the message's body.
func (m *Map) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, mapSize)
	b = binary.LittleEndian.AppendUint32(b, m.Flags)
	b = binary.LittleEndian.AppendUint64(b, m.Offset)
	b = binary.LittleEndian.AppendUint64(b, m.Addr)
	return binary.LittleEndian.AppendUint64(b, m.Size)
}

// ParseMap parses the body of DMA_MAP.
func ParseMap(b []byte) (m Map, err error) {
	if len(b) < mapSize {
		return m, short("DMA_MAP", b, mapSize)
	}
	le := binary.LittleEndian
	m = Map{Flags: le.Uint32(b[4:]), Offset: le.Uint64(b[8:]), Range: Range{le.Uint64(b[16:]), le.Uint64(b[24:])}}
	if err := m.ok(); err != nil {
		return m, fmt.Errorf("vfio-user DMA_MAP: %w", err)
	}
	if m.Size > math.MaxInt64 || m.Offset > math.MaxInt64-m.Size || m.Addr > math.MaxUint64-m.Size {
		return m, fmt.Errorf("vfio-user DMA_MAP: %s at file offset %#x wraps", m.Range, m.Offset)
	}
	return m, nil
}

// UnmapAll is the flag of DMA_UNMAP that removes all mappings. It comes from VFIO
// (VFIO_DMA_UNMAP_FLAG_ALL), and QEMU sends it.
const UnmapAll uint32 = 1 << 1

// Unmap is the body of DMA_UNMAP, and of its reply.
type Unmap struct {
	Flags uint32
	Range
}

// Append appends the message's body.
func (u *Unmap) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, unmapSize)
	b = binary.LittleEndian.AppendUint32(b, u.Flags)
	b = binary.LittleEndian.AppendUint64(b, u.Addr)
	return binary.LittleEndian.AppendUint64(b, u.Size)
}

// ParseUnmap parses the body of DMA_UNMAP.
func ParseUnmap(b []byte) (u Unmap, err error) {
	if len(b) < unmapSize {
		return u, short("DMA_UNMAP", b, unmapSize)
	}
	le := binary.LittleEndian
	u = Unmap{Flags: le.Uint32(b[4:]), Range: Range{le.Uint64(b[8:]), le.Uint64(b[16:])}}
	if u.Flags&UnmapAll != 0 {
		return u, nil
	}
	if err := u.ok(); err != nil {
		return u, fmt.Errorf("vfio-user DMA_UNMAP: %w", err)
	}
	return u, nil
}
