package service

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// end is a queue pair of a service with its completion queue and buffers. Each receive has a slot of
// the buffer; the answer is written from the same slot, which is posted again when the answer was
// sent.
type end struct {
	v    *life
	cq   *guestlib.CQ
	qp   *guestlib.QP
	mr   *guestlib.MR
	size int // of a slot

	datagrams bool // else it is a peer's
}

// newEnd makes a queue pair with its receives.
func (v *life) newEnd(ctx context.Context, cfg guestlib.QPConfig) (_ *end, err error) {
	e := &end{v: v, size: MaxMessage, datagrams: cfg.Type == guestlib.UD}
	if e.datagrams {
		e.size += guestlib.GRHSize
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(context.WithoutCancel(ctx)))
		}
	}()
	buf, err := v.dev.Alloc(receives * e.size)
	if err != nil {
		return nil, err
	}
	if e.mr, err = v.pd.RegMR(ctx, buf, guestlib.LocalWrite); err != nil {
		return nil, errors.Join(err, buf.Free())
	}
	if e.cq, err = v.dev.CreateCQ(ctx, 2*receives); err != nil {
		return nil, err
	}
	cfg.SendCQ, cfg.SendEntries, cfg.RecvEntries = e.cq, receives, receives
	if e.qp, err = v.pd.CreateQP(ctx, cfg); err != nil {
		return nil, err
	}
	for slot := range receives {
		if err := e.receive(slot); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// receive posts the receive of a slot.
func (e *end) receive(slot int) error {
	return e.qp.PostRecv(&guestlib.RecvWR{ID: uint64(slot), SGL: []guestlib.SGE{e.mr.SGE(slot*e.size, e.size)}})
}

// close destroys what newEnd made.
func (e *end) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	if e.qp != nil {
		err = e.qp.Destroy(ctx)
	}
	if e.cq != nil {
		err = errors.Join(err, e.cq.Destroy(ctx))
	}
	if e.mr != nil {
		err = errors.Join(err, e.mr.Dereg(ctx))
	}
	return err
}

const closeTime = 5 * time.Second

// run answers messages until the queue pair goes down or ctx ends.
func (e *end) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !e.datagrams {
		go func() {
			select {
			case <-e.qp.Down():
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	var wc [receives]guestlib.WC
	for {
		n, err := e.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			if err := e.completed(ctx, &wc[i]); err != nil {
				return err
			}
		}
		if n == 0 {
			if err := e.cq.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// completed answers a message that was received, or posts the slot of an answer that was sent.
func (e *end) completed(ctx context.Context, wc *guestlib.WC) error {
	slot := int(wc.ID)
	if err := wc.Err(); err != nil {
		if !e.datagrams || e.qp.State() == abi.QPStateErr {
			return err
		}
		if e.qp.State() == abi.QPStateSQE { // one answer failed: the others' go on
			if err := e.qp.Resume(ctx); err != nil {
				return err
			}
		}
		return e.receive(slot)
	}
	if wc.Opcode != abi.WCOpRecv {
		return e.receive(slot)
	}
	wr := guestlib.SendWR{ID: wc.ID, Opcode: guestlib.Send, Flags: guestlib.Signaled}
	b := e.mr.Bytes()[slot*e.size:][:wc.ByteLen]
	skip := 0
	n := -1
	if e.datagrams {
		skip = guestlib.GRHSize
		from, err := guestlib.SourceGID(b)
		if err != nil { // nobody to answer
			return e.receive(slot)
		}
		wr.To, wr.RemoteQPN, wr.RemoteQKey = guestlib.AHConfig{GID: from}, wc.SrcQP, QKey
		if req, ok := bytes.CutPrefix(b[skip:], []byte(wireMagic)); ok && len(req) == 4 {
			n = e.v.wire(ctx, guestlib.QPAddress{GID: from, QPN: binary.LittleEndian.Uint32(req)}, b[skip:])
		} else {
			n = e.v.answer(b[skip:], wc, &wr)
		}
	} else {
		n = e.v.answer(b, wc, &wr)
	}
	if n < 0 {
		return e.receive(slot)
	}
	wr.SGL = []guestlib.SGE{e.mr.SGE(slot*e.size+skip, n)}
	return e.qp.PostSend(&wr)
}

// wire makes a queue pair that is wired to a peer's, and writes the answer to its request over it.
func (v *life) wire(ctx context.Context, to guestlib.QPAddress, b []byte) int {
	e, err := v.serve(ctx, to, func(ctx context.Context, e *end) error { return e.qp.Wire(ctx, to) })
	if err != nil {
		v.log.Info("peer not wired", "peer", to.GID, "qp", to.QPN, "reason", err)
		return -1
	}
	return len(v.welcome(b[:0], e.qp.Num()))
}

// answer writes the answer to a message over it, and returns its length, −1 for none.
func (v *life) answer(b []byte, wc *guestlib.WC, wr *guestlib.SendWR) int {
	switch v.kind {
	case config.ServiceEcho:
		if wc.Flags&guestlib.WCWithImm != 0 {
			wr.Opcode, wr.Imm = guestlib.SendImm, wc.Imm
		}
		return len(b)
	case config.ServicePattern:
		n := 0
		for n < len(b) && b[n] == Pattern(n) {
			n++
		}
		binary.LittleEndian.PutUint64(b[:8:8], uint64(n))
		return 8
	}
	return -1
}
