package arena

import (
	"encoding/binary"
	"fmt"
)

// entriesPerPage is the number of page addresses in one page of a page list.
const entriesPerPage = PageSize / 8

// MaxLevels is the largest number of levels that a device reads.
const MaxLevels = 3

// PageList tells the device the addresses of scattered pages. With one level, Root is a page of
// addresses; with two, a page of addresses of such pages; and so on. It is stored in device memory.
type PageList struct {
	Root   uint64 // device address
	Levels uint8  // 1 to MaxLevels
	blocks []*Block
}

// NewPageList returns a page list of the pages addrs, with as few levels as possible.
func (p *Pool) NewPageList(addrs []uint64) (*PageList, error) {
	if len(addrs) == 0 || len(addrs) > entriesPerPage*entriesPerPage*entriesPerPage {
		return nil, fmt.Errorf("page list: %d pages; a list holds 1 to %d", len(addrs), entriesPerPage*entriesPerPage*entriesPerPage)
	}
	p.mu.Lock() // held while writing too, so that Close does not unmap the memory
	defer p.mu.Unlock()
	l := &PageList{}
	for {
		l.Levels++
		b, err := p.alloc((len(addrs) + entriesPerPage - 1) / entriesPerPage * PageSize)
		if err != nil {
			for _, b := range l.blocks {
				b.free()
			}
			return nil, fmt.Errorf("page list of %d pages: %w", len(addrs), err)
		}
		l.blocks = append(l.blocks, b)
		mem := b.Bytes()
		for i, a := range addrs {
			binary.LittleEndian.PutUint64(mem[8*i:], a)
		}
		addrs = b.Pages()
		if len(addrs) == 1 {
			l.Root = addrs[0]
			return l, nil
		}
	}
}

// Free frees the list's memory. The device must not need it any more.
func (l *PageList) Free() {
	for _, b := range l.blocks {
		b.Free()
	}
	l.blocks = nil
}
