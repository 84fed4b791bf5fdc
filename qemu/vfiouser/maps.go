package vfiouser

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// MaxMaps is the largest number of mappings of a client: the protocol's default. With a vIOMMU each
// page that a guest maps may be one mapping.
const MaxMaps = 65535

// mappings holds the ranges that a client has mapped, in ascending order. They do not overlap.
type mappings struct{ list []Range }

// find returns the index of the range that begins where r begins, or the index to insert it at.
func (m *mappings) find(r Range) (at int) {
	at, _ = slices.BinarySearchFunc(m.list, r, func(a, b Range) int { return cmp.Compare(a.Addr, b.Addr) })
	return at
}

// add adds a range. It does not limit the number of ranges: Device.Map does.
func (m *mappings) add(r Range) error {
	at := m.find(r)
	if at < len(m.list) && m.list[at].Overlaps(r) || at > 0 && m.list[at-1].Overlaps(r) {
		return unix.EEXIST // vfio-user "VFIO_USER_DMA_MAP"
	}
	m.list = slices.Insert(m.list, at, r)
	return nil
}

// remove removes the addresses of r and returns the number of ranges that lost addresses. A client
// with an IOMMU unmaps whole parts of its address space, which may be empty, and parts of ranges
// that it mapped at once.
func (m *mappings) remove(r Range) (lost int, err error) {
	first := m.find(r)
	if first > 0 && m.list[first-1].Overlaps(r) {
		first--
	}
	var left []Range
	end := first
	for ; end < len(m.list) && m.list[end].Overlaps(r); end++ {
		left = append(left, m.list[end].Without(r)...)
	}
	if len(m.list)-(end-first)+len(left) > MaxMaps {
		return 0, unix.ENOSPC
	}
	m.list = slices.Replace(m.list, first, end, left...)
	return end - first, nil
}
