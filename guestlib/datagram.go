package guestlib

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Types of queue pairs that carry datagrams.
const (
	UD  = abi.QPTypeUD  // unreliable datagram
	GSI = abi.QPTypeGSI // unreliable datagram with QP number 1, one per function
)

// GRHSize is the number of bytes before the data in a received datagram: its headers.
const GRHSize = abi.GRHSize

// AHConfig is the destination of datagrams.
type AHConfig struct {
	GID GID
	Path
}

// AH is an address handle: the destination of datagrams.
type AH struct {
	pd    *PD
	ahn   uint32
	ended end
}

// CreateAH creates an address handle. It does not check whether the destination exists: datagrams
// to an unknown address are lost.
func (p *PD) CreateAH(ctx context.Context, cfg AHConfig) (*AH, error) {
	if p.dev.learned.Load().info.Features&abi.FeatureDatagrams == 0 {
		return nil, errNoDatagrams
	}
	var r abi.CreateAHResult
	in := abi.CreateAH{PDN: p.pdn, DGID: cfg.GID, TrafficClass: cfg.TrafficClass, HopLimit: cfg.HopLimit, FlowLabel: cfg.FlowLabel, SL: cfg.SL}
	if err := p.admin.do(ctx, abi.AdminOpCreateAH, &in, &r, nil); err != nil {
		return nil, fmt.Errorf("address handle for %s: %w", cfg.GID, err)
	}
	return &AH{pd: p, ahn: r.AHN}, nil
}

// Destroy destroys the handle. Outstanding sends that use it are still sent.
func (a *AH) Destroy(ctx context.Context) error {
	return a.ended.once(func() error {
		return a.pd.admin.do(ctx, abi.AdminOpDestroyAH, &abi.DestroyAH{AHN: a.ahn}, nil, nil)
	})
}

// SourceGID returns the sender's GID of a datagram from the GRHSize bytes before its data, like
// ibv_init_ah_from_wc.
func SourceGID(grh []byte) (gid GID, err error) {
	if len(grh) < GRHSize {
		return gid, invalid("GRH of %d bytes; it has %d", len(grh), GRHSize)
	}
	if h := grh[20:GRHSize]; h[0] == 0x45 {
		sum := uint32(0)
		for i := 0; i < len(h); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(h[i:]))
		}
		if uint16(sum>>16+sum) == 0xffff {
			gid[10], gid[11] = 0xff, 0xff
			copy(gid[12:], h[12:16])
			return gid, nil
		}
	}
	if grh[0]>>4 != 6 {
		return gid, protocolError("GRH of neither IPv4 nor IPv6: % x", grh[:GRHSize])
	}
	copy(gid[:], grh[8:24])
	return gid, nil
}

// datagrams reports whether the QP's type is UD or GSI.
func (c *QPConfig) datagrams() bool { return c.Type == UD || c.Type == GSI }

// startDatagrams moves a datagram QP to RTS. It needs no peer.
func (q *QP) startDatagrams(ctx context.Context) error {
	qkey := q.cfg.QKey
	if q.cfg.Type == GSI && qkey == 0 {
		qkey = abi.GSIQKey
	}
	for _, attr := range []QPAttr{
		{Mask: abi.QPAttrState | abi.QPAttrQKey, State: abi.QPStateInit, QKey: qkey},
		{Mask: abi.QPAttrState, State: abi.QPStateRTR},
		{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS, SQPSN: wirePSN},
	} {
		if err := q.Modify(ctx, attr); err != nil {
			return fmt.Errorf("QP to %s: %w", attr.State, err)
		}
	}
	return nil
}

// Resume moves a datagram QP back to RTS after a failed send.
func (q *QP) Resume(ctx context.Context) error {
	return q.Modify(ctx, QPAttr{Mask: abi.QPAttrState, State: abi.QPStateRTS})
}

var errNoDatagrams = fmt.Errorf("%w: this device carries no datagrams", ErrUnsupported)

// GroupQPN is the RemoteQPN of datagrams to a multicast group. Their address handle has the group's
// GID.
const GroupQPN = abi.GroupQPN

// AttachMcast makes a UD queue pair receive the datagrams to a multicast group, also those that
// this function sends. A group belongs to the tenant; the functions of the tenant that have a port
// can send to each other.
func (q *QP) AttachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpAttachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}

// DetachMcast undoes AttachMcast. Destroying the queue pair does that, too.
func (q *QP) DetachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpDetachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}
