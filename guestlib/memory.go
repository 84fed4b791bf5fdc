package guestlib

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Access rights of memory regions and QPs; may be combined.
const (
	LocalWrite   = abi.AccessLocalWrite
	RemoteWrite  = abi.AccessRemoteWrite
	RemoteRead   = abi.AccessRemoteRead
	RemoteAtomic = abi.AccessRemoteAtomic
	MWBind       = abi.AccessMWBind    // memory windows may be bound to the region
	ZeroBased    = abi.AccessZeroBased // addresses start at 0; they are not those of this process
)

// Buffer is memory that can be registered: whole pages outside the Go heap, pinned if needed.
type Buffer struct {
	block *arena.Block
	mu    sync.Mutex
	mrs   int // number of memory regions
	freed bool
}

// Alloc returns a zeroed buffer of n bytes that starts at a page boundary.
func (d *Device) Alloc(n int) (*Buffer, error) {
	if err := d.Err(); err != nil {
		return nil, err
	}
	b, err := d.pool.Alloc(n)
	if err != nil {
		return nil, err
	}
	return &Buffer{block: b}, nil
}

// Bytes returns the buffer's memory. It must not be accessed after Free or Device.Close.
func (b *Buffer) Bytes() []byte { return b.block.Bytes() }

// Free frees the memory. It returns ErrBusy while memory regions use the buffer. A second call does
// nothing.
func (b *Buffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed {
		return nil
	}
	if b.mrs > 0 {
		return fmt.Errorf("buffer: %w: %d memory regions use it; deregister them first", ErrBusy, b.mrs)
	}
	b.freed = true
	b.block.Free()
	return nil
}

func (b *Buffer) use() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.freed {
		return fmt.Errorf("buffer: %w", ErrClosed)
	}
	b.mrs++
	return nil
}

func (b *Buffer) release() {
	b.mu.Lock()
	b.mrs--
	b.mu.Unlock()
}

// PD is a protection domain: a QP can access only memory regions of its own domain.
type PD struct {
	dev   *Device
	admin *admin
	pdn   uint32
	ended end
}

// AllocPD creates a protection domain.
func (d *Device) AllocPD(ctx context.Context) (*PD, error) {
	var r abi.AllocPDResult
	a := d.admin.Load()
	if err := a.do(ctx, abi.AdminOpAllocPD, nil, &r, nil); err != nil {
		return nil, err
	}
	return &PD{dev: d, admin: a, pdn: r.PDN}, nil
}

// Dealloc destroys the domain. It returns ErrBusy while the domain has memory regions or QPs.
func (p *PD) Dealloc(ctx context.Context) error {
	return p.ended.once(func() error {
		return p.admin.do(ctx, abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: p.pdn}, nil, nil)
	})
}

// MR is a registered buffer.
type MR struct {
	admin      *admin
	buf        *Buffer
	base       uint64
	lkey, rkey atomic.Uint32 // Rereg may change them
	ended      end
}

// RegMR registers the whole of buf. Work requests and peers address its bytes by their addresses in
// this process, or with ZeroBased by addresses from 0 on.
func (p *PD) RegMR(ctx context.Context, buf *Buffer, access uint32) (*MR, error) {
	if err := buf.use(); err != nil {
		return nil, err
	}
	list, err := p.dev.pool.NewPageList(buf.block.Pages())
	if err != nil {
		buf.release()
		return nil, err
	}
	base := buf.block.Addr()
	if access&ZeroBased != 0 {
		base = 0
	}
	var r abi.RegMRResult
	err = p.admin.do(ctx, abi.AdminOpRegMR, &abi.RegMR{
		PDN: p.pdn, Access: access, IOVA: base, Length: uint64(len(buf.Bytes())), Pages: list.Root, Levels: list.Levels,
	}, &r, nil)
	list.Free() // the device has copied it
	if err != nil {
		buf.release()
		return nil, registers{p.dev.stream.Load()}.outside(ctx, err, buf.block.Pages())
	}
	m := &MR{admin: p.admin, buf: buf, base: base}
	m.setKeys(&r)
	return m, nil
}

func (m *MR) setKeys(r *abi.RegMRResult) {
	m.lkey.Store(r.LKey)
	m.rkey.Store(r.RKey)
}

// LKey returns the key for work requests of this function.
func (m *MR) LKey() uint32 { return m.lkey.Load() }

// RKey returns the key for peers.
func (m *MR) RKey() uint32 { return m.rkey.Load() }

// Addr returns the address of the first byte, for SGEs and for peers.
func (m *MR) Addr() uint64 { return m.base }

// Len returns the number of bytes.
func (m *MR) Len() int { return len(m.buf.Bytes()) }

// Bytes returns the memory of the buffer.
func (m *MR) Bytes() []byte { return m.buf.Bytes() }

// SGE returns the SGE of n bytes at offset off of the region. The device checks the bounds.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.base + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// Dereg ends the registration and invalidates the keys; work that still uses the region fails. It
// returns ErrBusy while windows are bound to the region.
func (m *MR) Dereg(ctx context.Context) error {
	return m.ended.once(func() error {
		err := m.admin.do(ctx, abi.AdminOpDeregMR, &abi.DeregMR{LKey: m.LKey()}, nil, nil)
		if err == nil || gone(err) {
			m.buf.release()
		}
		return err
	})
}

// gone reports whether err means that the device does not have the object any more.
func gone(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrDeviceLost) || errors.Is(err, ErrClosed)
}

// end makes destruction happen only once. A failed attempt, for example because the object is busy,
// may be repeated.
type end struct {
	mu   sync.Mutex
	done bool
}

// once calls f unless an earlier call succeeded. It returns nil if the object is gone, whatever the
// reason.
func (e *end) once(f func() error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return nil
	}
	err := f()
	if err == nil || gone(err) {
		e.done = true
		return nil
	}
	return err
}

// Binding describes what a memory window makes accessible: a part of a region registered with
// MWBind, and rights (RemoteWrite, RemoteRead, RemoteAtomic). With ZeroBased, peers address its
// bytes from 0 on.
type Binding = abi.BindMW

// MW is a memory window. It grants and revokes access to a part of a region by work requests
// instead of registrations. A window of type 2 grants access to the peer of one QP, one of type 1
// to the peers of all QPs of its PD. It is safe for concurrent use, but the order of concurrent
// bindings is undefined.
type MW struct {
	pd    *PD
	rkey  atomic.Uint32 // Bind changes it
	ended end
}

// AllocMW creates a memory window of type 2, which is not bound yet.
func (p *PD) AllocMW(ctx context.Context) (*MW, error) { return p.allocMW(ctx, abi.MWType2) }

// AllocMWType1 creates a memory window of type 1, which is not bound yet.
func (p *PD) AllocMWType1(ctx context.Context) (*MW, error) { return p.allocMW(ctx, abi.MWType1) }

func (p *PD) allocMW(ctx context.Context, typ abi.MWType) (*MW, error) {
	var r abi.AllocMWResult
	if err := p.admin.do(ctx, abi.AdminOpAllocMW, &abi.AllocMW{PDN: p.pdn, Type: typ}, &r, nil); err != nil {
		return nil, err
	}
	w := &MW{pd: p}
	w.rkey.Store(r.RKey)
	return w, nil
}

// RKey returns the key for peers, of the latest Bind.
func (w *MW) RKey() uint32 { return w.rkey.Load() }

// Bind returns the work request that binds the window with a new key, which RKey returns from then
// on. Post it on the QP whose peer gets access. Before a window of type 2 is bound again, a
// LocalInv of its key or a SendInv of the peer must have ended the binding. A window of type 1 can
// be bound again at any time, and a Binding of no bytes unbinds it.
func (w *MW) Bind(id uint64, b Binding) SendWR {
	for {
		old := w.rkey.Load()
		key := old&^0xff | (old+1)&0xff
		if w.rkey.CompareAndSwap(old, key) {
			return SendWR{ID: id, Opcode: BindMW, Flags: Signaled, RKey: key, Bind: b}
		}
	}
}

// Bind returns the Binding of n bytes at offset off of the region, for MW.Bind.
func (m *MR) Bind(off, n int, access uint32) Binding {
	return Binding{Addr: m.base + uint64(off), Length: uint64(n), LKey: m.LKey(), Access: access}
}

// Dealloc destroys the window and ends its binding.
func (w *MW) Dealloc(ctx context.Context) error {
	return w.ended.once(func() error {
		return w.pd.admin.do(ctx, abi.AdminOpDeallocMW, &abi.DeallocMW{RKey: w.RKey()}, nil, nil)
	})
}

// Rereg changes the region's access rights and protection domain; nil keeps the domain. It returns
// ErrBusy while windows are bound to the region. If the region's key was invalidated, the region
// becomes valid again with new keys.
func (m *MR) Rereg(ctx context.Context, access uint32, pd *PD) error {
	m.ended.mu.Lock() // Dereg meanwhile would name the old key
	defer m.ended.mu.Unlock()
	in := abi.ReregMR{LKey: m.LKey(), Mask: abi.ReregAccess, Access: access}
	if pd != nil {
		in.Mask |= abi.ReregPD
		in.PDN = pd.pdn
	}
	var r abi.RegMRResult
	if err := m.admin.do(ctx, abi.AdminOpReregMR, &in, &r, nil); err != nil {
		return err
	}
	m.setKeys(&r)
	return nil
}
