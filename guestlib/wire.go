package guestlib

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPAddress is the address of a queue pair for its peer. Programs exchange it by a way of their
// own: a connected queue pair, a TCP socket.
type QPAddress struct {
	GID GID
	QPN uint32
}

// Path holds the header fields that a program chooses for a peer, like ibv_ah_attr. If all are zero
// the device chooses.
type Path struct {
	FlowLabel    uint32 // 20 bits; connections with different labels take different paths through the fabric
	TrafficClass uint8  // the upper six bits are the DSCP, of the outer header too; the lower two belong to the network
	HopLimit     uint8
	SL           uint8 // not sent
}

// SetPath sets the header fields with which the QP will send after it is connected or wired. The QP
// must be in INIT.
func (q *QP) SetPath(ctx context.Context, p Path) error {
	if s := q.State(); s != abi.QPStateInit {
		return stateError("QP %d is in %s; the path of a QP is set in INIT", q.qpn, s)
	}
	err := q.Modify(ctx, abi.ModifyQP{FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL, Mask: abi.QPAttrAV})
	if err != nil {
		return fmt.Errorf("path of QP %d: %w", q.qpn, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.path = p
	return nil
}

// QPAddressSize is the length of an encoded QPAddress in bytes.
const QPAddressSize = 20

// AppendBinary appends the address as QPAddressSize bytes.
func (a QPAddress) AppendBinary(b []byte) ([]byte, error) {
	return binary.BigEndian.AppendUint32(append(b, a.GID[:]...), a.QPN), nil
}

// UnmarshalBinary decodes the encoding of AppendBinary.
func (a *QPAddress) UnmarshalBinary(b []byte) error {
	if len(b) != QPAddressSize {
		return invalid("QP address of %d bytes; it has %d", len(b), QPAddressSize)
	}
	a.QPN = binary.BigEndian.Uint32(b[copy(a.GID[:], b):])
	return nil
}

// Address returns the QP's address for a peer.
func (q *QP) Address() QPAddress { return QPAddress{q.dev.now.Load().info.GID, q.qpn} }

// Wire moves a QP from INIT through RTR to RTS, with a peer whose address the program has got by a
// way of its own. The peer must do the same, sooner or later. Wire does not wait for the peer:
// receives and sends may be posted at once. If the peer is not there in time (8 s, or longer if the
// QP's timeouts say so), a send fails with WCRetryExcErr; a send of a UC QP is lost. Unlike with
// Connect, the program does not learn when the peer leaves. A peer may be another QP of this
// function, or the QP itself.
func (q *QP) Wire(ctx context.Context, peer QPAddress) error {
	if q.dev.now.Load().info.Features&abi.FeatureExtendedVerbs == 0 {
		return fmt.Errorf("%w: this device connects QPs by Connect and Accept only", ErrUnsupported)
	}
	if s := q.State(); s != abi.QPStateInit {
		return stateError("QP %d is in %s; only a QP in INIT can be wired", q.qpn, s)
	}
	c := &q.cfg
	toRTR, toRTS := uint32(0), uint32(0) // further attributes of reliable connections
	if c.Type != UC {
		toRTR = abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
		toRTS = abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrMaxRdAtomic
	}
	q.mu.Lock()
	p := q.path
	q.mu.Unlock()
	err := q.Modify(ctx, abi.ModifyQP{
		FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL,
		State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(c.PathMTU), DestQPN: peer.QPN, DGID: peer.GID, RQPSN: wirePSN, MinRNRTimer: c.MinRNRTimer, MaxDestRdAtomic: c.ReadAtomic,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | toRTR,
	})
	if err == nil {
		err = q.Modify(context.WithoutCancel(ctx), abi.ModifyQP{
			State: abi.QPStateRTS, Timeout: c.Timeout, RetryCnt: c.RetryCount, RNRRetry: c.RNRRetry, SQPSN: wirePSN, MaxRdAtomic: c.ReadAtomic,
			Mask: abi.QPAttrState | abi.QPAttrSQPSN | toRTS,
		})
	}
	if err != nil {
		return fmt.Errorf("wire QP %d to QP %d of %s: %w", q.qpn, peer.QPN, peer.GID, err)
	}
	return nil
}

// wirePSN is a placeholder for the first PSNs, which Falcon negotiates by itself.
const wirePSN = 0
