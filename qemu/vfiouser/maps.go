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

// find returns where a range stands or would stand.
func (m *mappings) find(r Range) (at int, there bool) {
	at, _ = slices.BinarySearchFunc(m.list, r, func(a, b Range) int {
		switch {
		case a.Addr < b.Addr:
			return -1
		case a.Addr > b.Addr:
			return 1
		}
		return 0
	})
	return at, at < len(m.list) && m.list[at] == r
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

// remove forgets a range, which must be exactly one that was added.
func (m *mappings) remove(r Range) error {
	at, there := m.find(r)
	if !there {
		return unix.ENOENT
	}
	m.list = slices.Delete(m.list, at, at+1)
	return nil
}
