package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// SGE is one scatter/gather element that was checked: Length bytes at Addr, which MR covers.
type SGE struct {
	MR     *MR
	Addr   uint64
	Length uint32
}

// SGL is a scatter/gather list.
type SGL []SGE

// SGEs reads n elements from b, which holds at least as many, and appends those that are not empty
// to list. Each region must give the rights in need. ok is false if an element names no region of
// pd, lies outside its region, lacks a right, or has the reserved key in a queue that is not
// privileged. total is the sum of the lengths.
func (r *Regions) SGEs(pd *PD, privileged bool, list SGL, b []byte, n int, need uint32) (_ SGL, total uint64, ok bool) {
	for i := range n {
		var x abi.SGE
		x.Unmarshal(b[i*abi.SGESize:])
		if x.Length == 0 {
			continue
		}
		m := r.memory(pd, privileged, x.LKey, x.Addr, uint64(x.Length), need)
		if m == nil {
			return list, total, false
		}
		list = append(list, SGE{MR: m, Addr: x.Addr, Length: x.Length})
		total += uint64(x.Length)
	}
	return list, total, true
}

// Cursor is a position in a scatter/gather list.
type Cursor struct {
	index  int    // element
	offset uint32 // bytes into it
}

// Advance moves c forward by n bytes of list.
func (c *Cursor) Advance(list SGL, n uint32) {
	for n > 0 && c.index < len(list) {
		step := min(n, list[c.index].Length-c.offset)
		c.offset += step
		n -= step
		if c.offset == list[c.index].Length {
			c.index, c.offset = c.index+1, 0
		}
	}
}

// At returns the address at c, its key, and how many bytes the element has from there on.
func (s SGL) At(c Cursor) (addr uint64, lkey, left uint32) {
	x := &s[c.index]
	return x.Addr + uint64(c.offset), x.MR.key, x.Length - c.offset
}

// Gather fills dst from the list, beginning at c. The list must hold that much.
func (s SGL) Gather(c Cursor, dst []byte) error {
	for len(dst) > 0 {
		x := &s[c.index]
		n := min(len(dst), int(x.Length-c.offset))
		if err := x.MR.Read(x.Addr+uint64(c.offset), dst[:n]); err != nil {
			return err
		}
		dst = dst[n:]
		c = Cursor{index: c.index + 1}
	}
	return nil
}

// Scatter writes src to the list, beginning at c. The list must hold that much.
func (s SGL) Scatter(c Cursor, src []byte) error {
	for len(src) > 0 {
		x := &s[c.index]
		n := min(len(src), int(x.Length-c.offset))
		if err := x.MR.Write(x.Addr+uint64(c.offset), src[:n]); err != nil {
			return err
		}
		src = src[n:]
		c = Cursor{index: c.index + 1}
	}
	return nil
}

// wrongSGE returns why Regions.SGEs rejected one of the n elements in b.
func (r *Regions) wrongSGE(pd *PD, privileged bool, b []byte, n int, need uint32) Reason {
	for i := range n {
		var x abi.SGE
		x.Unmarshal(b[i*abi.SGESize:])
		if x.Length == 0 || r.memory(pd, privileged, x.LKey, x.Addr, uint64(x.Length), need) != nil {
			continue
		}
		at, key := uint64(i), uint64(x.LKey)
		switch m := r.named(x.LKey); {
		case x.LKey == abi.ReservedLKey:
			return because("SGE %d: the reserved lkey %#x is for privileged queues, and device addresses below 2^62", at, key)
		case m == nil || m.window:
			return because("SGE %d: lkey %#x names no memory region", at, key)
		case m.pd != pd:
			return because("SGE %d: lkey %#x is of another protection domain than the queue", at, key)
		case !m.usable():
			return because("SGE %d: lkey %#x has no memory now: it was invalidated, or never registered", at, key)
		case m.access&need != need:
			return because("SGE %d: lkey %#x has no local write access, which what comes in needs", at, key)
		default:
			return because("SGE %d: %d bytes at %#x are not inside the region of lkey %#x", at, uint64(x.Length), x.Addr, key)
		}
	}
	return because("an SGE names no memory of the queue")
}
