package vhostuser

import (
	"fmt"
	"slices"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// The messages about the guest's memory.

func (c *Conversation) setMemTable(m *Message) error {
	rs, err := ParseMemTable(m.Payload)
	if err != nil {
		return err
	}
	if len(rs) != m.FDs() {
		return fmt.Errorf("%d regions with %d descriptors", len(rs), m.FDs())
	}
	next := State{}
	var maps []*Mapping
	undo := func() {
		for _, mp := range maps {
			mp.unmap()
		}
	}
	for _, r := range rs {
		mp, err := next.mapNew(r, m)
		if err != nil {
			undo()
			return err
		}
		maps = append(maps, mp)
	}
	return c.replaceMemory(next.Regions, maps)
}

func (c *Conversation) addRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	if len(c.State.Regions) >= MaxMemSlots {
		return fmt.Errorf("more than %d memory regions", MaxMemSlots)
	}
	next := State{Regions: slices.Clone(c.State.Regions)}
	mp, err := next.mapNew(r, m)
	if err != nil {
		return err
	}
	return c.replaceMemory(next.Regions, append(slices.Clone(c.maps), mp))
}

func (c *Conversation) removeRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	i := c.State.findRegion(r)
	if i < 0 {
		return fmt.Errorf("memory region %#x+%#x does not exist", r.GPA, r.Size)
	}
	return c.replaceMemory(slices.Delete(slices.Clone(c.State.Regions), i, i+1), slices.Delete(slices.Clone(c.maps), i, i+1))
}

// parseSlot reads the payload of ADD_MEM_REG and REM_MEM_REG: eight bytes of
// padding and one region.
func parseSlot(m *Message) (Region, error) {
	if len(m.Payload) < 8+RegionSize {
		return Region{}, fmt.Errorf("payload of %d bytes, want %d", len(m.Payload), 8+RegionSize)
	}
	return parseRegion(m.Payload[8:]), nil
}

// mapNew checks and maps one more region and appends it to the state. The
// descriptor of a region that is refused stays the message's.
func (s *State) mapNew(r Region, m *Message) (*Mapping, error) {
	fd := m.TakeFD()
	if fd == eventfd.None {
		return nil, fmt.Errorf("memory region %#x+%#x has no descriptor", r.GPA, r.Size)
	}
	err := s.checkRegion(r)
	var mp *Mapping
	if err == nil {
		mp, err = mapRegion(r, fd)
	}
	if err != nil {
		m.giveBack(fd)
		return nil, err
	}
	s.Regions = append(s.Regions, r)
	return mp, nil
}

// replaceMemory hands the new set of mappings to the device and unmaps what is
// not in it any more.
func (c *Conversation) replaceMemory(regions []Region, maps []*Mapping) error {
	old := c.maps
	c.State.Regions, c.maps = regions, maps
	err := c.dev.SetMemory(&c.State, maps)
	for _, mp := range old {
		if !slices.Contains(maps, mp) {
			mp.unmap()
		}
	}
	return err
}
