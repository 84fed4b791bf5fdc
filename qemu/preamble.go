package qemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// A bare client sends its memory preamble, little-endian, with one sendmsg:
//
//	 0        8       12       16                            16+24n
//	┌────────┬───────┬────────┬─────────────────────────────┐
//	│VNICMEM1│ u32 n │ u32 0  │ n × {u64 address, size,     │  + n descriptors
//	│        │       │        │      offset in its file}    │
//	└────────┴───────┴────────┴─────────────────────────────┘
//
// The answer is {u32 status, u32 length} and a reason of length bytes; status is an abi.Status.
// Address, size and offset are multiples of 4096.
const (
	preambleMagic  = "VNICMEM1"
	preambleHeader = 16
	preambleRegion = 24
	// maxClientRegions bounds the mappings of one client.
	maxClientRegions = 64
	pageSize         = 4096
)

// receivePreamble reads and answers a client's preamble and maps its memory.
func receivePreamble(conn *net.UnixConn, memory *guestmem.Budget) (regions []queues.Region, maps []*guestmem.Mapping, err error) {
	var fds fdpass.FDs
	defer fds.Close()
	wanted, err := readPreamble(conn, &fds)
	if err != nil && !errors.Is(err, errPreamble) {
		return nil, nil, fmt.Errorf("memory preamble: %w", err)
	}
	if err == nil {
		regions, maps, err = mapClient(wanted, &fds, memory)
	}
	status, reason := abi.StatusOK, ""
	if err != nil {
		status, reason = abi.StatusInvalidArgument, err.Error()
	}
	answer := binary.LittleEndian.AppendUint32(nil, uint32(status))
	answer = binary.LittleEndian.AppendUint32(answer, uint32(len(reason)))
	if _, werr := conn.Write(append(answer, reason...)); err == nil && werr != nil {
		unmapAll(maps)
		return nil, nil, fmt.Errorf("memory preamble: answer: %w", werr)
	}
	return regions, maps, err
}

// errPreamble is wrapped by the refusals that are sent to the client.
var errPreamble = errors.New("memory preamble refused")

func refuse(format string, a ...any) error {
	return fmt.Errorf("%w: %w", errPreamble, fmt.Errorf(format, a...))
}

type clientRegion struct{ addr, size, offset uint64 }

func readPreamble(conn *net.UnixConn, fds *fdpass.FDs) ([]clientRegion, error) {
	var h [preambleHeader]byte
	if err := fds.ReadFull(conn, h[:], maxClientRegions); err != nil {
		return nil, err
	}
	if string(h[:8]) != preambleMagic {
		return nil, refuse("it starts with %q, want %q", h[:8], preambleMagic)
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if n > maxClientRegions {
		return nil, refuse("%d regions, the limit is %d", n, maxClientRegions)
	}
	b := make([]byte, n*preambleRegion)
	if err := fds.ReadFull(conn, b, maxClientRegions); err != nil {
		return nil, err
	}
	if fds.Len() != int(n) {
		return nil, refuse("%d regions with %d descriptors", n, fds.Len())
	}
	rs := make([]clientRegion, n)
	for i := range rs {
		e := b[i*preambleRegion:]
		rs[i] = clientRegion{binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint64(e[16:])}
		if err := rs[i].check(rs[:i]); err != nil {
			return nil, err
		}
	}
	return rs, nil
}

func (r clientRegion) check(before []clientRegion) error {
	_, wraps := bits.Add64(r.addr, r.size, 0)
	end, offsetWraps := bits.Add64(r.offset, r.size, 0)
	switch {
	case r.size == 0:
		return refuse("region at %#x has no bytes", r.addr)
	case (r.addr|r.size|r.offset)%pageSize != 0:
		return refuse("region %#x+%#x at offset %#x is not made of whole %d-byte pages", r.addr, r.size, r.offset, pageSize)
	case wraps != 0 || offsetWraps != 0 || end >= 1<<63:
		return refuse("region %#x+%#x at offset %#x wraps around", r.addr, r.size, r.offset)
	}
	for _, o := range before {
		if r.addr < o.addr+o.size && o.addr < r.addr+r.size {
			return refuse("regions %#x+%#x and %#x+%#x overlap", o.addr, o.size, r.addr, r.size)
		}
	}
	return nil
}

// mapClient maps all regions, or none if it fails.
func mapClient(rs []clientRegion, fds *fdpass.FDs, memory *guestmem.Budget) (regions []queues.Region, maps []*guestmem.Mapping, err error) {
	defer func() {
		if err != nil {
			unmapAll(maps)
			regions, maps = nil, nil
		}
	}()
	for _, r := range rs {
		fd := fds.Take()
		m, err := r.mmap(fd, memory)
		if err != nil {
			fds.Add(fd) // closing it may block on the client, which must get the answer first
			return regions, maps, err
		}
		_ = unix.Close(fd)
		maps = append(maps, m)
		regions = append(regions, queues.Region{Addr: r.addr, Mem: m.Mem})
	}
	return regions, maps, nil
}

// mmap maps one region. It requires F_SEAL_SHRINK: without the seal the client could truncate the
// file while it is mapped, and each access would fault.
func (r clientRegion) mmap(fd int, memory *guestmem.Budget) (*guestmem.Mapping, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, refuse("the descriptor of region %#x is no memfd (%w); create it with memfd_create and MFD_ALLOW_SEALING", r.addr, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, refuse("the memfd of region %#x lacks F_SEAL_SHRINK; add the seal before passing it", r.addr)
	}
	m, err := memory.Map(fd, r.offset, r.size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, refuse("region %#x+%#x: %w", r.addr, r.size, err)
	}
	return m, nil
}

func unmapAll(maps []*guestmem.Mapping) {
	for _, m := range maps {
		m.Unmap()
	}
}
