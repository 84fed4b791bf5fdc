package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// inside runs a round of SENDs between two queue pairs of the driver's own function, which the NIC
// connects without a network. The server does not take part.
func (d *driver) inside(ctx context.Context, begin control, times *[]time.Duration) (problem string, err error) {
	from, to, err := d.loop(ctx)
	if err != nil {
		return "", err
	}
	op, size, per := begin.op, int(begin.size), slotSize(int(begin.size))
	for i := range int(begin.count) {
		iteration := int(begin.first) + i
		k := key(begin.seed, op, size, iteration)
		source, sink := d.slot(2*i, per), d.slot(2*i+1, per)
		off, at := localOffset(iteration), remoteOffset(iteration)
		fill(source[off:off+size], k)
		fillCanary(sink)
		if err := to.PostRecv(&guestlib.RecvWR{ID: idInside + uint64(i), SGL: []guestlib.SGE{d.mr.SGE((2*i+1)*per+at, size+1)}}); err != nil {
			return "", err
		}
		start := time.Now()
		wr := guestlib.SendWR{ID: uint64(i), Opcode: guestlib.SendImm, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(2*i*per+off, size)}, Imm: immediate(k)}
		if err := from.PostSend(&wr); err != nil {
			return "", err
		}
		for range 2 { // the receive and the SEND
			wc, err := d.next(ctx)
			switch {
			case err != nil:
				return "", fmt.Errorf("iteration %d: %w", iteration, err)
			case wc.ID == uint64(i):
				*times = append(*times, time.Since(start))
			case wc.ID != idInside+uint64(i):
				return "", fmt.Errorf("completion of work request %d where %d was due", wc.ID, i)
			case (int(wc.ByteLen) != size || wc.Imm != immediate(k)) && problem == "":
				problem = fmt.Sprintf("iteration %d: received %d bytes with immediate data %#x", iteration, wc.ByteLen, wc.Imm)
			}
		}
		if err := checkSlot(sink, at, size, k); err != nil && problem == "" {
			problem = fmt.Sprintf("iteration %d: %v", iteration, err)
		}
	}
	return problem, nil
}

// loop returns two queue pairs of this function that are wired to each other. It creates them if
// needed.
func (d *driver) loop(ctx context.Context) (from, to *guestlib.QP, err error) {
	if q := d.queues[Inside]; q != nil {
		return q.qp, q.loop, nil
	}
	q := &queue{}
	cfg := guestlib.QPConfig{SendCQ: d.cq, SendEntries: queueEntries, RecvEntries: queueEntries}
	if q.loop, err = d.pd.CreateQP(ctx, cfg); err != nil {
		return nil, nil, err
	}
	q.owns(q.loop.Destroy)
	err = d.add(ctx, Inside, q, func() (err error) {
		q.qp, err = d.pd.CreateQP(ctx, cfg)
		return err
	})
	if err == nil {
		err = q.qp.Wire(ctx, q.loop.Address())
	}
	if err == nil {
		err = q.loop.Wire(ctx, q.qp.Address())
	}
	return q.qp, q.loop, err
}
