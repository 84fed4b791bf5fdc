package vfiouser

import (
	"slices"

	"golang.org/x/sys/unix"
)

// MaxMaps is how many mappings a client may have at once: what the protocol gives without saying.
// With a vIOMMU each page that a guest maps may be one.
const MaxMaps = 65535

// mappings are the ranges that a client has mapped, in ascending order. None overlaps another.
type mappings struct{ list []Range }

// find returns where a range that begins where r does stands, or would stand.
func (m *mappings) find(r Range) (at int, there bool) {
	return slices.BinarySearchFunc(m.list, r, func(a, b Range) int {
		switch {
		case a.Addr < b.Addr:
			return -1
		case a.Addr > b.Addr:
			return 1
		}
		return 0
	})
}

// add notes a range.
func (m *mappings) add(r Range) error {
	if len(m.list) >= MaxMaps {
		return unix.ENOSPC
	}
	at, _ := m.find(r)
	if at < len(m.list) && m.list[at].overlaps(r) || at > 0 && m.list[at-1].overlaps(r) {
		return unix.EEXIST // vfio-user "VFIO_USER_DMA_MAP"
	}
	m.list = slices.Insert(m.list, at, r)
	return nil
}

// remove forgets the ranges that lie inside r, which may be none: a client with an IOMMU takes back
// whole parts of its address space. One that lies inside only in part stays, and all others.
func (m *mappings) remove(r Range) (gone []Range, err error) {
	first, _ := m.find(r)
	if first > 0 && m.list[first-1].overlaps(r) {
		return nil, unix.EINVAL
	}
	end := first
	for end < len(m.list) && m.list[end].overlaps(r) {
		end++
	}
	if end > first && m.list[end-1].last() > r.last() {
		return nil, unix.EINVAL
	}
	gone = slices.Clone(m.list[first:end])
	m.list = slices.Delete(m.list, first, end)
	return gone, nil
}
