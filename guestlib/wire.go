package guestlib

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// QPAddress names a queue pair to its peer. Programs exchange it by whatever they have: a connected
// queue pair, a TCP socket.
type QPAddress struct {
	GID GID
	QPN uint32
}

// Path is what a program asks of the way to a peer, as ibv_ah_attr. All zero is the device's
// choice.
type Path struct {
	FlowLabel    uint32 // 20 bits: connections with different ones take different paths through the fabric
	TrafficClass uint8  // DSCP in the upper six bits, of the outer header too; the lower two are the network's
	HopLimit     uint8
	SL           uint8 // not carried
}

// SetPath sets under which headers a QP will send that is then connected or wired. It must be in
// INIT.
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

// QPAddressSize is the length of a QPAddress as bytes.
const QPAddressSize = 20

// AppendBinary appends the address as QPAddressSize bytes.
func (a QPAddress) AppendBinary(b []byte) ([]byte, error) {
	return binary.BigEndian.AppendUint32(append(b, a.GID[:]...), a.QPN), nil
}

// UnmarshalBinary reads what AppendBinary wrote.
func (a *QPAddress) UnmarshalBinary(b []byte) error {
	if len(b) != QPAddressSize {
		return invalid("QP address of %d bytes; it has %d", len(b), QPAddressSize)
	}
	a.QPN = binary.BigEndian.Uint32(b[copy(a.GID[:], b):])
	return nil
}

// Address is how a peer names the QP.
func (q *QP) Address() QPAddress { return QPAddress{q.dev.now.Load().info.GID, q.qpn} }

// Wire takes a QP in INIT through RTR to RTS with a peer whose address was exchanged elsewhere, and
// which does the same, sooner or later. It does not wait for the peer: receives and sends may be
// posted at once. A send that finds no peer in time (8 s, or longer if the QP's timeouts say so)
// fails with WCRetryExcErr, one of a UC QP is lost, and there is nobody to tell when the peer
// leaves: that is what Connect is for. A peer may be another QP of this function, or the QP itself.
func (q *QP) Wire(ctx context.Context, peer QPAddress) error {
	if q.dev.now.Load().info.Features&abi.FeatureExtendedVerbs == 0 {
		return fmt.Errorf("%w: this device connects QPs by Connect and Accept only", ErrUnsupported)
	}
	if s := q.State(); s != abi.QPStateInit {
		return stateError("QP %d is in %s; only a QP in INIT can be wired", q.qpn, s)
	}
	c := &q.cfg
	toRTR, toRTS := uint32(0), uint32(0) // what reliable connections have beside
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

// wirePSN stands for the first PSNs, which Falcon agrees on by itself.
const wirePSN = 0
