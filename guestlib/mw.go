package guestlib

import (
	"context"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Binding says what a memory window opens: a piece of a region made with MWBind, and rights out of
// RemoteWrite, RemoteRead and RemoteAtomic. With ZeroBased peers name its bytes from 0 on.
type Binding = abi.BindMW

// MW is a memory window. One of type 2 gives the peer of one QP access to a piece of a region, one
// of type 1 the peers of all QPs of its PD, and takes it back, by work requests instead of
// registrations. It is safe for concurrent use, but which binding comes first is then anybody's
// guess.
type MW struct {
	pd    *PD
	rkey  uint32
	ended end
}

// AllocMW makes a memory window of type 2, which opens nothing yet.
func (p *PD) AllocMW(ctx context.Context) (*MW, error) { return p.allocMW(ctx, abi.MWType2) }

// AllocMWType1 makes a memory window of type 1, which opens nothing yet.
func (p *PD) AllocMWType1(ctx context.Context) (*MW, error) { return p.allocMW(ctx, abi.MWType1) }

func (p *PD) allocMW(ctx context.Context, typ abi.MWType) (*MW, error) {
	var r abi.AllocMWResult
	if err := p.admin.do(ctx, abi.AdminOpAllocMW, &abi.AllocMW{PDN: p.pdn, Type: typ}, &r, nil); err != nil {
		return nil, err
	}
	return &MW{pd: p, rkey: r.RKey}, nil
}

// RKey is the key for peers, of the binding that Bind made last.
func (w *MW) RKey() uint32 { return w.rkey }

// Bind makes the work request that binds the window, with a new key, and remembers that key. Post
// it on the QP whose peer is meant. Before the window is bound again a LocalInv of its key, or a
// SendInv of the peer, must have ended the binding; one of type 1 is bound again as it is, and a
// Binding of no bytes frees it.
func (w *MW) Bind(id uint64, b Binding) SendWR {
	w.rkey = w.rkey&^0xff | (w.rkey+1)&0xff
	return SendWR{ID: id, Opcode: BindMW, Flags: Signaled, RKey: w.rkey, Bind: b}
}

// Bind names n bytes at offset off of the region for MW.Bind.
func (m *MR) Bind(off, n int, access uint32) Binding {
	return Binding{Addr: m.base + uint64(off), Length: uint64(n), LKey: m.lkey, Access: access}
}

// Dealloc destroys the window and ends its binding.
func (w *MW) Dealloc(ctx context.Context) error {
	return w.ended.once(func() error {
		return w.pd.admin.do(ctx, abi.AdminOpDeallocMW, &abi.DeallocMW{RKey: w.rkey}, nil, nil)
	})
}

// Rereg gives the region other access rights and another protection domain; nil keeps the domain.
// It is ErrBusy while windows are bound to it, and revives one whose key became invalid: that has
// new keys then.
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
