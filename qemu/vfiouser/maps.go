package vfiouser

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// MaxMaps is how many mappings a client may have at once: what the protocol gives without saying.
// With a vIOMMU each page that a guest maps may be one.
const MaxMaps = 65535

// mappings are the ranges that a client has mapped, in ascending order. None overlaps another.
type mappings struct{ list []Range }

// find returns where a range that begins where r does stands, or would stand.
func (m *mappings) find(r Range) (at int) {
	at, _ = slices.BinarySearchFunc(m.list, r, func(a, b Range) int { return cmp.Compare(a.Addr, b.Addr) })
	return at
}

// add notes a range. How many there may be the device says.
func (m *mappings) add(r Range) error {
	at := m.find(r)
	if at < len(m.list) && m.list[at].Overlaps(r) || at > 0 && m.list[at-1].Overlaps(r) {
		return unix.EEXIST // vfio-user "VFIO_USER_DMA_MAP"
	}
	m.list = slices.Insert(m.list, at, r)
	return nil
}

// remove takes addresses out of the ranges: a client with an IOMMU takes back whole parts of its
// address space, where nothing may be, and parts of what it mapped at once. It returns how many
// ranges lost addresses.
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
