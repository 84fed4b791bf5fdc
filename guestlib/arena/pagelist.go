package arena

import (
	"encoding/binary"
	"fmt"
)

// entriesPerPage is how many page addresses one page of a page list holds.
const entriesPerPage = PageSize / 8

// MaxLevels is the deepest page list a device reads.
const MaxLevels = 3

// PageList tells the device where scattered pages are: with one level Root is a page of addresses,
// with two a page of addresses of such pages, and so on. It lives in device memory.
type PageList struct {
	Root   uint64 // device address
	Levels uint8  // 1 to MaxLevels
	blocks []*Block
}

// NewPageList writes a page list of the pages addrs, with as few levels as will do.
func (p *Pool) NewPageList(addrs []uint64) (*PageList, error) {
	if len(addrs) == 0 || len(addrs) > entriesPerPage*entriesPerPage*entriesPerPage {
		return nil, fmt.Errorf("page list: %d pages; a list holds 1 to %d", len(addrs), entriesPerPage*entriesPerPage*entriesPerPage)
	}
	p.mu.Lock() // held while writing too: Close must not take the memory away
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

// Free gives the list's memory back. The device must not need it any more.
func (l *PageList) Free() {
	for _, b := range l.blocks {
		b.Free()
	}
	l.blocks = nil
}
