package vhostuser

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

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
	for _, r := range rs {
		err := next.checkRegion(r)
		var mp *Mapping
		if err == nil {
			mp, err = c.mapping(r, m)
		}
		if err != nil {
			c.closeUnused(maps)
			return err
		}
		next.Regions, maps = append(next.Regions, r), append(maps, mp)
	}
	return c.replaceMemory(next.Regions, maps)
}

// addRegion takes one region more. One that is there already is acknowledged: QEMU before 8.0 sends
// each once for each pair of a port's queues.
func (c *Conversation) addRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	refusal := c.State.checkRegion(r)
	if len(c.State.Regions) >= MaxMemSlots {
		refusal = fmt.Errorf("more than %d memory regions", MaxMemSlots)
	}
	if refusal != nil && !slices.Contains(c.State.Regions, r) {
		return refusal
	}
	mp, err := c.mapping(r, m)
	switch {
	case err != nil:
		return err
	case slices.Contains(c.maps, mp):
		return nil
	case refusal != nil: // it is another file
		mp.close()
		return refusal
	}
	return c.replaceMemory(append(slices.Clone(c.State.Regions), r), append(slices.Clone(c.maps), mp))
}

// removeRegion takes one away. One that is not there any more is acknowledged: it may be said once
// for each pair of queues, too.
func (c *Conversation) removeRegion(m *Message) error {
	r, err := parseSlot(m)
	if err != nil {
		return err
	}
	i := c.State.findRegion(r)
	if i < 0 {
		return nil
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

// mapping returns that of a region, of the next descriptor of a message: the one that there is, or a
// new one. The descriptor of a region that is refused stays the message's.
func (c *Conversation) mapping(r Region, m *Message) (*Mapping, error) {
	fd := m.TakeFD()
	if fd == eventfd.None {
		return nil, fmt.Errorf("memory region %#x+%#x has no descriptor", r.GPA, r.Size)
	}
	if i := slices.IndexFunc(c.maps, func(o *Mapping) bool { return o.is(r, fd) }); i >= 0 {
		_ = unix.Close(fd)
		return c.maps[i], nil
	}
	mp, err := mapRegion(r, fd, c.memory)
	if err != nil {
		m.giveBack(fd)
	}
	return mp, err
}

// replaceMemory hands the new set of mappings to the device and unmaps what is
// not in it any more.
func (c *Conversation) replaceMemory(regions []Region, maps []*Mapping) error {
	old := c.maps
	c.State.Regions, c.maps = regions, maps
	err := c.dev.SetMemory(&c.State, maps)
	c.closeUnused(old)
	return err
}

// closeUnused closes those of maps that are not the conversation's.
func (c *Conversation) closeUnused(maps []*Mapping) {
	for _, mp := range maps {
		if !slices.Contains(c.maps, mp) {
			mp.close()
		}
	}
}
