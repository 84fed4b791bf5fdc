package rdma

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

// sge is one scatter/gather element after its checks: length bytes at addr, covered by mr.
type sge struct {
	mr     *MR
	addr   uint64
	length uint32
}

// sges reads n elements from b, which holds at least as many, and appends those that are not empty
// to list. need is the right each region must give. ok is false when an element names no region of
// pd, lies outside it or lacks the right. total is the sum of the lengths.
func (f *Function) sges(pd *PD, list []sge, b []byte, n int, need uint32) (_ []sge, total uint64, ok bool) {
	for i := range n {
		var x abi.SGE
		x.Unmarshal(b[i*abi.SGESize:])
		if x.Length == 0 {
			continue
		}
		m := f.mr(pd, x.LKey, x.Addr, uint64(x.Length), need)
		if m == nil {
			return list, total, false
		}
		list = append(list, sge{mr: m, addr: x.Addr, length: x.Length})
		total += uint64(x.Length)
	}
	return list, total, true
}

// cursor is a place in a scatter/gather list.
type cursor struct {
	index  int    // element
	offset uint32 // bytes into it
}

// advance moves c by n bytes of list.
func (c *cursor) advance(list []sge, n uint32) {
	for n > 0 && c.index < len(list) {
		step := min(n, list[c.index].length-c.offset)
		c.offset += step
		n -= step
		if c.offset == list[c.index].length {
			c.index, c.offset = c.index+1, 0
		}
	}
}

// gather fills dst from list, beginning at c. The list holds that much.
func gather(list []sge, c cursor, dst []byte) error {
	for len(dst) > 0 {
		s := &list[c.index]
		n := min(len(dst), int(s.length-c.offset))
		if err := s.mr.read(s.addr+uint64(c.offset), dst[:n]); err != nil {
			return err
		}
		dst = dst[n:]
		c = cursor{index: c.index + 1}
	}
	return nil
}

// scatter writes src to list, beginning at c. The list holds that much.
func scatter(list []sge, c cursor, src []byte) error {
	for len(src) > 0 {
		s := &list[c.index]
		n := min(len(src), int(s.length-c.offset))
		if err := s.mr.write(s.addr+uint64(c.offset), src[:n]); err != nil {
			return err
		}
		src = src[n:]
		c = cursor{index: c.index + 1}
	}
	return nil
}
