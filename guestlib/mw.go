package guestlib

import (
	"context"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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
	rkey  uint32
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
	return &MW{pd: p, rkey: r.RKey}, nil
}

// RKey returns the key for peers, of the latest Bind.
func (w *MW) RKey() uint32 { return w.rkey }

// Bind returns the work request that binds the window with a new key, which RKey returns from then
// on. Post it on the QP whose peer gets access. Before a window of type 2 is bound again, a
// LocalInv of its key or a SendInv of the peer must have ended the binding. A window of type 1 can
// be bound again at any time, and a Binding of no bytes unbinds it.
func (w *MW) Bind(id uint64, b Binding) SendWR {
	w.rkey = w.rkey&^0xff | (w.rkey+1)&0xff
	return SendWR{ID: id, Opcode: BindMW, Flags: Signaled, RKey: w.rkey, Bind: b}
}

// Bind returns the Binding of n bytes at offset off of the region, for MW.Bind.
func (m *MR) Bind(off, n int, access uint32) Binding {
	return Binding{Addr: m.base + uint64(off), Length: uint64(n), LKey: m.lkey, Access: access}
}

// Dealloc destroys the window and ends its binding.
func (w *MW) Dealloc(ctx context.Context) error {
	return w.ended.once(func() error {
		return w.pd.admin.do(ctx, abi.AdminOpDeallocMW, &abi.DeallocMW{RKey: w.rkey}, nil, nil)
	})
}

// Rereg changes the region's access rights and protection domain; nil keeps the domain. It returns
// ErrBusy while windows are bound to the region. If the region's key was invalidated, the region
// becomes valid again with new keys.
func (m *MR) Rereg(ctx context.Context, access uint32, pd *PD) error {
	in := abi.ReregMR{LKey: m.lkey, Mask: abi.ReregAccess, Access: access}
	if pd != nil {
		in.Mask |= abi.ReregPD
		in.PDN = pd.pdn
	}
	var r abi.RegMRResult
	if err := m.pd.admin.do(ctx, abi.AdminOpReregMR, &in, &r, nil); err != nil {
		return err
	}
	m.lkey, m.rkey = r.LKey, r.RKey
	if pd != nil {
		m.pd = pd
	}
	return nil
}
