package guest

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// page is one page of guest memory as the ring arithmetic sees it.
type page struct {
	mem  *queues.Memory
	addr uint64
}

func (p page) ok(off, n uint64) error {
	if off > abi.PageSize || n > abi.PageSize-off {
		return ring.ErrBounds
	}
	return nil
}

func (p page) ReadAt(off uint64, dst []byte) error {
	if err := p.ok(off, uint64(len(dst))); err != nil {
		return err
	}
	return p.mem.Read(p.addr+off, dst)
}

func (p page) WriteAt(off uint64, src []byte) error {
	if err := p.ok(off, uint64(len(src))); err != nil {
		return err
	}
	return p.mem.Write(p.addr+off, src)
}

func (p page) Load32(off uint64) (uint32, error) {
	if err := p.ok(off, 4); err != nil {
		return 0, err
	}
	return p.mem.Load32(p.addr + off)
}

func (p page) Store32(off uint64, v uint32) error {
	if err := p.ok(off, 4); err != nil {
		return err
	}
	return p.mem.Store32(p.addr+off, v)
}

func (p page) Load64(off uint64) (uint64, error) {
	if err := p.ok(off, 8); err != nil {
		return 0, err
	}
	return p.mem.Load64(p.addr + off)
}

func (p page) Store64Release(off, v uint64) error {
	if err := p.ok(off, 8); err != nil {
		return err
	}
	return p.mem.Store64(p.addr+off, v)
}

var _ ring.Bytes = page{}
