package fakedev

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// region is a mapped piece of a client's memory.
type region struct {
	addr uint64
	mem  []byte
}

// receiveMemory reads the memory message of a client, maps what it names and answers.
func receiveMemory(conn *net.UnixConn) (memory, error) {
	msg := make([]byte, 4096)
	oob := make([]byte, 4096)
	n, oobn, _, _, err := conn.ReadMsgUnix(msg, oob)
	if err != nil {
		return nil, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, c := range cmsgs {
		f, err := unix.ParseUnixRights(&c)
		if err != nil {
			return nil, err
		}
		fds = append(fds, f...)
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if n < 16 || string(msg[:8]) != "VNICMEM1" {
		return nil, fmt.Errorf("bad memory message of %d bytes", n)
	}
	count := int(binary.LittleEndian.Uint32(msg[8:]))
	if n != 16+24*count || len(fds) != count {
		return nil, fmt.Errorf("memory message of %d bytes with %d fds for %d regions", n, len(fds), count)
	}
	var regions memory
	for i := range count {
		r := msg[16+24*i:]
		size, off := binary.LittleEndian.Uint64(r[8:]), binary.LittleEndian.Uint64(r[16:])
		seals, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GET_SEALS, 0)
		if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
			return nil, fmt.Errorf("region %d may shrink", i)
		}
		mem, err := unix.Mmap(fds[i], int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		regions = append(regions, region{binary.LittleEndian.Uint64(r), mem})
	}
	_, err = conn.Write(make([]byte, 8))
	return regions, err
}

// memory is what a client made visible to the device.
type memory []region

// page returns the page at a device address.
func (m memory) page(addr uint64) ([]byte, error) {
	for _, r := range m {
		if addr%abi.PageSize == 0 && addr >= r.addr && addr-r.addr < uint64(len(r.mem)) {
			off := addr - r.addr
			return r.mem[off : off+abi.PageSize], nil
		}
	}
	return nil, fmt.Errorf("address %#x is not the client's", addr)
}

// paged is memory behind a page list. It is ring.Bytes.
type paged [][]byte

// addresses reads a list of n pages.
func (m memory) addresses(root uint64, levels uint8, n int) ([]uint64, error) {
	if levels < 1 || levels > abi.MaxPageLevels {
		return nil, fmt.Errorf("page list with %d levels", levels)
	}
	list := []uint64{root}
	for l := int(levels); l > 0; l-- {
		per := 1
		for range l - 1 {
			per *= abi.PageListEntries
		}
		var next []uint64
		for i := range (n + per - 1) / per {
			p, err := m.page(list[i/abi.PageListEntries])
			if err != nil {
				return nil, err
			}
			next = append(next, binary.LittleEndian.Uint64(p[i%abi.PageListEntries*8:]))
		}
		list = next
	}
	return list, nil
}

// pages finds memory by addresses of pages.
func (m memory) pages(list []uint64) (paged, error) {
	var out paged
	for _, a := range list {
		p, err := m.page(a)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// pageList finds the memory of a list of n pages.
func (m memory) pageList(root uint64, levels uint8, n int) (paged, error) {
	list, err := m.addresses(root, levels, n)
	if err != nil {
		return nil, err
	}
	return m.pages(list)
}

// span finds the memory of a region, whose first byte is at skew of the first page found: of its
// own pages, which may be large, those parts that it covers.
func (m memory) span(p *abi.RegMR, shift uint8) (found paged, skew uint64, err error) {
	end := uint64(p.Offset) + p.Length
	list, err := m.addresses(p.Pages, p.Levels, int((end-1)>>shift)+1)
	if err != nil {
		return nil, 0, err
	}
	var small []uint64
	for at := uint64(p.Offset) &^ (abi.PageSize - 1); at < end; at += abi.PageSize {
		small = append(small, list[at>>shift]+at&(1<<shift-1))
	}
	found, err = m.pages(small)
	return found, uint64(p.Offset) % abi.PageSize, err
}

func (m memory) area(root uint64, levels uint8, layout ring.Layout) (paged, error) {
	return m.pageList(root, levels, int((layout.Size()+abi.PageSize-1)/abi.PageSize))
}

// each calls f for the pieces of n bytes at off.
func (p paged) each(off uint64, n int, f func(b []byte)) error {
	if off+uint64(n) > uint64(len(p))*abi.PageSize {
		return io.ErrUnexpectedEOF
	}
	for n > 0 {
		b := p[off/abi.PageSize][off%abi.PageSize:]
		b = b[:min(len(b), n)]
		f(b)
		off += uint64(len(b))
		n -= len(b)
	}
	return nil
}

func (p paged) ReadAt(off uint64, dst []byte) error {
	return p.each(off, len(dst), func(b []byte) { dst = dst[copy(dst, b):] })
}

func (p paged) WriteAt(off uint64, src []byte) error {
	return p.each(off, len(src), func(b []byte) { src = src[copy(b, src):] })
}

func (p paged) Load32(off uint64) (uint32, error) {
	return ring.Mem(p[off/abi.PageSize]).Load32(off % abi.PageSize)
}

func (p paged) Store32(off uint64, v uint32) error {
	return ring.Mem(p[off/abi.PageSize]).Store32(off%abi.PageSize, v)
}

func (p paged) Load64(off uint64) (uint64, error) {
	return ring.Mem(p[off/abi.PageSize]).Load64(off % abi.PageSize)
}

func (p paged) Store64Release(off uint64, v uint64) error {
	return ring.Mem(p[off/abi.PageSize]).Store64Release(off%abi.PageSize, v)
}
