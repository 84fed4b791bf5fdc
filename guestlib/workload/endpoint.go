package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const (
	queueEntries = 64
	maxRound     = queueEntries - 8 // largest number of iterations of a round: the queue has room for their receives and for control messages
	spins        = 64               // number of polls before waiting for an event
	stall        = 60 * time.Second // time limit of the wait for one completion
)

// Layout of an endpoint's memory: slots for data, then the cell for atomics between canaries, then
// control messages.
const (
	cellOffset   = 64 // in the page after the slots
	controlStart = 2048
	controlSlots = 8
	grhStart     = controlStart + controlSlots*controlSize // memory for the headers of datagrams
	tailSize     = 4096
)

// endpoint is one side of one connection.
type endpoint struct {
	dev  *guestlib.Device
	pd   *guestlib.PD
	cq   *guestlib.CQ
	mr   *guestlib.MR
	qp   *guestlib.QP
	buf  *guestlib.Buffer
	data int // bytes for slots
	// achieved is the time of the last progress: a row was finished, or a request of the peer
	// arrived.
	achieved time.Time

	queues map[guestlib.Opcode]*queue // of special operations

	wcs  [16]guestlib.WC
	have []guestlib.WC // polled but not yet returned by next
}

// open attaches to the function and creates the objects that both connections share.
func open(ctx context.Context, url string, data int) (*endpoint, error) {
	dev, err := guestlib.Open(ctx, url, guestlib.Options{Driver: "vnic workload"})
	if err != nil {
		return nil, err
	}
	e := &endpoint{dev: dev, data: data, achieved: time.Now(), queues: map[guestlib.Opcode]*queue{}}
	if err := e.setup(ctx); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return e, nil
}

const access = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic

func (e *endpoint) setup(ctx context.Context) (err error) {
	if e.buf == nil {
		if e.buf, err = e.dev.Alloc(e.data + tailSize); err != nil {
			return err
		}
	}
	if e.pd, err = e.dev.AllocPD(ctx); err != nil {
		return err
	}
	rights := uint32(access)
	if e.dev.Info().Features&abi.FeatureExtendedVerbs != 0 {
		rights |= guestlib.MWBind
	}
	if e.mr, err = e.pd.RegMR(ctx, e.buf, rights); err != nil {
		return err
	}
	e.cq, err = e.dev.CreateCQ(ctx, 8*queueEntries)
	return err
}

// newQP creates the queue pair of the next connection.
func (e *endpoint) newQP(ctx context.Context) (err error) {
	e.have = nil
	e.qp, err = e.pd.CreateQP(ctx, guestlib.QPConfig{
		SendCQ: e.cq, SendEntries: queueEntries, RecvEntries: queueEntries, MaxInline: controlSize, Access: access,
	})
	return err
}

// next returns the next completion. If the work request failed it returns an error. It polls for a
// while before it waits for an event.
func (e *endpoint) next(ctx context.Context) (guestlib.WC, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stall, fmt.Errorf("no completion within %v", stall))
	defer cancel()
	for spin := 0; len(e.have) == 0; spin++ {
		down := e.qp.State() != rts // before polling, so that completions from before the end are still returned
		n, err := e.cq.Poll(e.wcs[:])
		if err != nil {
			return guestlib.WC{}, err
		}
		e.have = e.wcs[:n]
		switch {
		case n > 0:
		case down:
			return guestlib.WC{}, errors.New("the connection is down")
		case spin < spins:
			runtime.Gosched()
		default:
			if err := e.cq.Wait(ctx); err != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				return guestlib.WC{}, err
			}
		}
	}
	wc := e.have[0]
	e.have = e.have[1:]
	return wc, wc.Err()
}

// IDs of work requests that are no iterations. The ID of an iteration is its number in the round.
const (
	idControl     = 1 << 32 // receive of a control message, plus its slot
	idControlSend = 2 << 32
	idWindow      = 3 << 32 // binding or unbinding of a window
	idLoopback    = 4 << 32 // receive of a message inside the function, plus its iteration
)

// expectControl posts the receive for a control message into a slot.
func (e *endpoint) expectControl(slot int) error {
	return e.qp.PostRecv(&guestlib.RecvWR{ID: idControl + uint64(slot), SGL: []guestlib.SGE{e.mr.SGE(e.controlOffset(slot), controlSize)}})
}

func (e *endpoint) controlOffset(slot int) int { return e.data + controlStart + slot*controlSize }

// send sends a control message. next returns its completion, with idControlSend.
func (e *endpoint) send(c control) error {
	return e.qp.PostSend(&guestlib.SendWR{ID: idControlSend, Opcode: guestlib.Send, Flags: guestlib.Signaled | guestlib.Solicited, Inline: c.marshal()})
}

// received returns the control message whose receive completed.
func (e *endpoint) received(wc guestlib.WC) (control, error) {
	var c control
	slot := int(wc.ID - idControl)
	if wc.ID < idControl || slot >= controlSlots {
		return c, fmt.Errorf("completion of work request %d where a control message was due", wc.ID)
	}
	if wc.ByteLen > controlSize {
		return c, fmt.Errorf("control message of %d bytes", wc.ByteLen)
	}
	return c, c.unmarshal(e.mr.Bytes()[e.controlOffset(slot):][:wc.ByteLen])
}

// slot returns the memory of iteration i of a round with slots of n bytes.
func (e *endpoint) slot(i, n int) []byte { return e.mr.Bytes()[i*n:][:n] }

// cell returns the memory around the atomics' cell, which is in the middle.
func (e *endpoint) cell() []byte { return e.mr.Bytes()[e.data:][:2*cellOffset+8] }
