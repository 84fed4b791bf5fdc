package vhostuser

import (
	"fmt"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
)

// This file handles the messages about rings.

func (c *Session) ring(i uint32) (int, error) {
	if i >= uint32(c.layout.Rings) {
		return 0, fmt.Errorf("ring %d does not exist, the device has %d", i, c.layout.Rings)
	}
	return int(i), nil
}

func (c *Session) setVringState(m *Message) error {
	v, err := ParseVringState(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(v.Index)
	if err != nil {
		return err
	}
	r := &c.State.Vrings[i]
	switch m.Request {
	case SetVringNum:
		if v.Num == 0 || v.Num > maxRingSize || v.Num&(v.Num-1) != 0 && !c.State.Packed() {
			return fmt.Errorf("ring %d has size %d, want a power of two up to %d", i, v.Num, maxRingSize)
		}
		if r.Running {
			return fmt.Errorf("ring %d is running", i)
		}
		r.Num = uint16(v.Num)
	case SetVringBase:
		if v.Num > 0xffff && !c.State.Packed() {
			return fmt.Errorf("ring %d has base %d, want at most 65535", i, v.Num)
		}
		if r.Running {
			return fmt.Errorf("ring %d is running", i)
		}
		r.Base, r.NoBase = v.Num, false
		if v.Num == 0 && c.State.Packed() && c.State.Features&FeatureProtocol == 0 {
			r.Base = packedBegin // User Mode Linux sends the base of a split ring for packed rings, too
		}
	case SetVringEnable:
		r.Enabled = v.Num != 0
		if !r.Enabled {
			c.stop(i)
		}
	}
	return c.startIfReady(i)
}

func (c *Session) setVringAddr(m *Message) error {
	a, err := ParseVringAddr(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(a.Index)
	if err != nil {
		return err
	}
	r := &c.State.Vrings[i]
	if r.Running {
		return fmt.Errorf("ring %d is running", i)
	}
	r.Desc, r.Used, r.Avail, r.HasAddr = a.Desc, a.Used, a.Avail, true
	return c.startIfReady(i)
}

// getVringBase stops the ring before it replies, because after the reply the front end may do
// anything with the ring's memory.
func (c *Session) getVringBase(m *Message) ([]byte, error) {
	v, err := ParseVringState(m.Payload)
	if err != nil {
		return nil, err
	}
	i, err := c.ring(v.Index)
	if err != nil {
		return nil, err
	}
	c.stop(i)
	// The ring does not start again before it gets a new kick descriptor.
	c.State.Vrings[i].HasKick = false
	replaceFD(&c.fds[i].kick, eventfd.None)
	return VringState{Index: v.Index, Num: c.State.Vrings[i].Base}.Append(nil), nil
}

func (c *Session) setVringFD(m *Message) error {
	v, err := parseU64(m.Payload)
	if err != nil {
		return err
	}
	i, err := c.ring(uint32(v & 0xff))
	if err != nil {
		return err
	}
	fd := m.TakeFD()
	if v&noFD != 0 && fd != eventfd.None {
		m.giveBack(fd)
		return fmt.Errorf("ring %d: a descriptor came with the no-descriptor bit", i)
	}
	if v&noFD == 0 {
		check := eventfd.Check
		if m.Request == SetVringCall {
			check = eventfd.CheckCall
		}
		if err := check(fd); err != nil {
			m.giveBack(fd)
			return fmt.Errorf("ring %d: %w", i, err)
		}
	}
	f, r := &c.fds[i], &c.State.Vrings[i]
	switch m.Request {
	case SetVringKick:
		if fd == eventfd.None {
			return fmt.Errorf("ring %d: polling without a kick descriptor is not offered", i)
		}
		c.stop(i)
		replaceFD(&f.kick, fd)
		r.HasKick = true
		return c.startIfReady(i)
	case SetVringCall:
		c.dev.SetCall(i, fd, f.err)
		replaceFD(&f.call, fd)
	case SetVringErr:
		c.dev.SetCall(i, f.call, fd)
		replaceFD(&f.err, fd)
	}
	return nil
}

func (c *Session) startIfReady(i int) error {
	s := &c.State
	if s.Vrings[i].Running || !s.ready(i) {
		return nil
	}
	f := &c.fds[i]
	if err := c.dev.StartVring(s, i, f.kick, f.call, f.err); err != nil {
		return fmt.Errorf("ring %d: %w", i, err)
	}
	s.Vrings[i].Running = true
	return nil
}

func (c *Session) stop(i int) {
	if r := &c.State.Vrings[i]; r.Running {
		r.Base, r.NoBase = c.dev.StopVring(i), false
		r.Running = false
	}
}

// noFD is a bit in the payload of a message about a ring's descriptor. It says that the message
// carries no descriptor.
const noFD = 1 << 8
