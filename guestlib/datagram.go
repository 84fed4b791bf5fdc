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
	GSI = abi.QPTypeGSI // the same with number 1, one per function
)

// GRHSize is the room that a receive of a datagram needs before the data: the headers it came
// under.
const GRHSize = abi.GRHSize

// AHConfig says where datagrams go.
type AHConfig struct {
	GID GID
	Path
}

// AH is an address handle: the way to a function, for datagrams.
type AH struct {
	pd    *PD
	ahn   uint32
	ended end
}

// CreateAH makes an address handle. It does not wait for anybody: datagrams to an address where
// nobody is are lost.
func (p *PD) CreateAH(ctx context.Context, cfg AHConfig) (*AH, error) {
	if p.dev.now.Load().info.Features&abi.FeatureDatagrams == 0 {
		return nil, errNoDatagrams
	}
	var r abi.CreateAHResult
	in := abi.CreateAH{PDN: p.pdn, DGID: cfg.GID, TrafficClass: cfg.TrafficClass, HopLimit: cfg.HopLimit, FlowLabel: cfg.FlowLabel, SL: cfg.SL}
	if err := p.admin.do(ctx, abi.AdminOpCreateAH, &in, &r, nil); err != nil {
		return nil, fmt.Errorf("address handle for %s: %w", cfg.GID, err)
	}
	return &AH{pd: p, ahn: r.AHN}, nil
}

// Destroy frees the handle. Sends that use it go on.
func (a *AH) Destroy(ctx context.Context) error {
	return a.ended.once(func() error {
		return a.pd.admin.do(ctx, abi.AdminOpDestroyAH, &abi.DestroyAH{AHN: a.ahn}, nil, nil)
	})
}

// SourceGID reads who sent a datagram from the GRHSize bytes before its data, as
// ibv_init_ah_from_wc does.
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

// datagrams reports whether the QP is of the datagram service.
func (c *QPConfig) datagrams() bool { return c.Type == UD || c.Type == GSI }

// startDatagrams brings a QP of the datagram service to RTS: it waits for nobody.
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

// Resume brings a QP of the datagram service back to RTS after a send that was wrong.
func (q *QP) Resume(ctx context.Context) error {
	return q.Modify(ctx, QPAttr{Mask: abi.QPAttrState, State: abi.QPStateRTS})
}

var errNoDatagrams = fmt.Errorf("%w: this device carries no datagrams", ErrUnsupported)
