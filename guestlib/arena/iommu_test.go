package arena

import (
	"errors"
	"testing"
)

// table is an IOMMU's.
type table struct {
	maps   map[uint64]int
	refuse error
}

func (m *table) MapDMA(mem []byte, addr uint64) error {
	if m.refuse != nil {
		return m.refuse
	}
	m.maps[addr] = len(mem)
	return nil
}

func (m *table) UnmapDMA(addr, size uint64) error {
	if m.maps[addr] != int(size) {
		return errors.New("not mapped so")
	}
	delete(m.maps, addr)
	return nil
}

// TestTheDeviceKnowsAChunkWhileItLives: chunks have addresses of their own, which the device knows exactly as long as they
// live.
func TestTheDeviceKnowsAChunkWhileItLives(t *testing.T) {
	m := &table{maps: map[uint64]int{}}
	s := NewIOMMU(m, 3*hugePage)
	a, err := s.Grow(100)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Grow(hugePage + 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Mem) != hugePage || len(b.Mem) != 2*hugePage || baseAddress(a.Mem)%hugePage != 0 {
		t.Errorf("%d and %d bytes, the first at %#x", len(a.Mem), len(b.Mem), baseAddress(a.Mem))
	}
	if a.Addrs[0] != iommuBase || b.Addrs[0] != iommuBase+hugePage || b.Addrs[1023] != b.Addrs[0]+1023*PageSize || len(b.Addrs) != 1024 {
		t.Errorf("addresses %#x, %#x … %#x", a.Addrs[0], b.Addrs[0], b.Addrs[len(b.Addrs)-1])
	}
	if len(m.maps) != 2 || m.maps[b.Addrs[0]] != len(b.Mem) {
		t.Errorf("the device knows %v", m.maps)
	}
	var full *ExhaustedError
	if _, err := s.Grow(1); !errors.As(err, &full) {
		t.Errorf("past the limit: %v", err)
	}
	if err := s.Close(); err != nil || len(m.maps) != 0 {
		t.Errorf("%v; still mapped: %v", err, m.maps)
	}
	m.refuse = errors.New("no")
	var pin *PinError
	if _, err := s.Grow(1); !errors.As(err, &pin) || !errors.Is(err, m.refuse) {
		t.Errorf("refused: %v", err)
	}
}
