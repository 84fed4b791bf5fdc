package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// driver posts the operations and times them.
type driver struct {
	*endpoint
	out  *printer
	seed uint64
	peer welcome
	gid  guestlib.GID // of the peer

	results []Result // finished rows of this turn
	leaving bool     // all rows are done; only the end of the connection is left
}

// drive runs the remaining rows over a new connection.
func (d *driver) drive(ctx context.Context, cfg *Config) error {
	if d.leaving {
		d.byeAgain(ctx, cfg)
		return nil
	}
	if err := d.connect(ctx, cfg); err != nil {
		return err
	}
	done := len(d.results)
	for _, op := range cfg.ops(d.dev.Info().Features) {
		d.out.progress("%s to %s", name(op), cfg.PeerGID)
		sizes := cfg.Sizes
		if atomic(op) {
			sizes = []int{8}
		}
		if op == Datagram { // one packet each
			sizes = slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n > d.dev.Info().MTU })
		}
		for _, size := range sizes {
			if done > 0 {
				done--
				continue
			}
			r, err := d.row(ctx, op, size, cfg.count(size))
			if err != nil {
				return fmt.Errorf("%s of %d bytes: %w", name(op), size, err)
			}
			d.results, d.achieved = append(d.results, r), time.Now()
			d.out.line(Output{Kind: KindResult, Result: &r})
		}
	}
	d.leaving = true
	return d.bye(ctx)
}

// connect connects to the server. It tries again while the server is not there yet.
func (d *driver) connect(ctx context.Context, cfg *Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.MeetTimeout, fmt.Errorf("the peer did not come within %v", cfg.MeetTimeout))
	defer cancel()
	if err := d.newQP(ctx); err != nil {
		return err
	}
	for slot := range controlSlots {
		if err := d.expectControl(slot); err != nil {
			return err
		}
	}
	d.out.progress("connecting to %s service %d", cfg.PeerGID, cfg.Service)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		answer, err := d.dev.Connect(ctx, d.qp, cfg.PeerGID, cfg.Service, []byte(welcomeMagic))
		switch {
		case err == nil:
			return d.peer.unmarshal(answer)
		case ctx.Err() != nil:
			return fmt.Errorf("connect: %w", context.Cause(ctx))
		case !errors.Is(err, guestlib.ErrRefused) && !errors.Is(err, guestlib.ErrUnreachable) && !errors.Is(err, guestlib.ErrTimeout):
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("connect: %w; the last answer was: %w", context.Cause(ctx), err)
		}
	}
}

// row runs count iterations of one operation at one size, in rounds.
func (d *driver) row(ctx context.Context, op guestlib.Opcode, size, count int) (Result, error) {
	r := Result{Op: name(op), Size: size, Count: count, Verified: true}
	times := make([]time.Duration, 0, count)
	perRound := min(maxRound, int(d.peer.data)/slotSize(size), d.data/slotSize(size))
	if op == Loopback { // both ends use this memory
		perRound = min(perRound, d.data/2/slotSize(size))
	}
	if perRound == 0 {
		return r, fmt.Errorf("the peer's memory of %d bytes is too small", d.peer.data)
	}
	for first := 0; first < count; first += perRound {
		n := min(perRound, count-first)
		begin := control{kind: msgBegin, op: op, size: uint32(size), first: uint32(first), count: uint32(n), seed: d.seed}
		round := d.round
		if op == Loopback {
			round = d.loopback
		}
		problem, err := round(ctx, begin, &times)
		if err != nil {
			return r, err
		}
		if problem != "" && r.Verified {
			r.Verified, r.Problem = false, problem
		}
	}
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	slices.Sort(times)
	r.P50US = round(micros(times[len(times)/2]))
	r.MeanUS = round(micros(sum) / float64(len(times)))
	if sum > 0 {
		r.MBps = round(float64(size) * float64(len(times)) / micros(sum))
	}
	return r, nil
}

// round rounds to three decimals, the precision of the measurement.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// round runs one round and returns the first problem that either side found in the data.
func (d *driver) round(ctx context.Context, begin control, times *[]time.Duration) (problem string, err error) {
	by := &queue{qp: d.qp}
	if special(begin.op) {
		if by, err = d.sending(ctx, begin.op, d.gid); err != nil {
			return "", err
		}
		begin.qpn = by.qp.Num()
	}
	ready, err := d.ask(ctx, begin, msgReady)
	if err != nil {
		return "", err
	}
	if special(begin.op) && by.ah == nil && !by.wired {
		if err := by.qp.Wire(ctx, guestlib.QPAddress{GID: d.gid, QPN: ready.qpn}); err != nil {
			return "", err
		}
		by.wired = true
	}
	var local error
	if atomic(begin.op) {
		local, err = d.atomics(ctx, begin, times)
	} else {
		local, err = d.transfers(ctx, begin, by, ready, times)
	}
	if err != nil {
		return "", err
	}
	check := begin
	check.kind = msgCheck
	verdict, err := d.ask(ctx, check, msgVerdict)
	if err != nil {
		return "", err
	}
	if local != nil {
		return local.Error(), nil
	}
	if begin.op == Window && verdict.problem == "" {
		return d.refused(ctx, by, ready.key)
	}
	return verdict.problem, nil
}

// ask sends a control message and returns the answer. For the last message it does not wait for the
// completion of the send, because the server may end the connection before that.
func (d *driver) ask(ctx context.Context, c control, want uint8) (answer control, err error) {
	if err := d.send(c); err != nil {
		return answer, err
	}
	for sent, got := c.kind == msgBye, false; !sent || !got; {
		wc, err := d.next(ctx)
		if err != nil {
			return answer, fmt.Errorf("control message %d: %w", c.kind, err)
		}
		if wc.ID == idControlSend {
			sent = true
			continue
		}
		if answer, err = d.received(wc); err != nil {
			return answer, err
		}
		if answer.kind != want {
			return answer, fmt.Errorf("the peer answered %d to control message %d", answer.kind, c.kind)
		}
		got = true
		if err := d.expectControl(int(wc.ID - idControl)); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

// do posts one request, waits for its completion, and returns how long that took.
func (d *driver) do(ctx context.Context, qp *guestlib.QP, wr *guestlib.SendWR) (time.Duration, error) {
	start := time.Now()
	if err := qp.PostSend(wr); err != nil {
		return 0, err
	}
	wc, err := d.next(ctx)
	took := time.Since(start)
	if err == nil && wc.ID != wr.ID {
		err = fmt.Errorf("completion of work request %d where %d was due", wc.ID, wr.ID)
	}
	if err != nil {
		return 0, fmt.Errorf("iteration %d: %w", wr.ID, err)
	}
	return took, nil
}

// transfers runs the iterations of all operations but atomics. problem is a difference that the
// driver itself found, which can happen only for READs.
func (d *driver) transfers(ctx context.Context, begin control, by *queue, ready control, times *[]time.Duration) (problem, err error) {
	op, size, per := begin.op, int(begin.size), slotSize(int(begin.size))
	var sgl [1]guestlib.SGE
	wr := guestlib.SendWR{Opcode: op, Flags: guestlib.Signaled, SGL: sgl[:], RKey: d.peer.rkey}
	switch {
	case op == Window:
		wr.Opcode, wr.RKey = guestlib.Write, ready.key
	case special(op):
		wr.Opcode, wr.RemoteSRQN = guestlib.SendImm, ready.srqn
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = by.ah, ready.qpn, datagramQKey
	}
	for i := range int(begin.count) {
		iteration := int(begin.first) + i
		k := key(begin.seed, op, size, iteration)
		slot, off := d.slot(i, per), localOffset(iteration)
		if op == guestlib.Read {
			fillCanary(slot)
		} else {
			fill(slot[off:off+size], k)
		}
		sgl[0] = d.mr.SGE(i*per+off, size)
		wr.ID, wr.Imm = uint64(i), immediate(k)
		wr.RemoteAddr = d.peer.addr + uint64(i*per+remoteOffset(iteration))
		took, err := d.do(ctx, by.qp, &wr)
		if err != nil {
			return nil, err
		}
		*times = append(*times, took)
		if op == guestlib.Read && problem == nil {
			if err := checkSlot(slot, off, size, k); err != nil {
				problem = fmt.Errorf("iteration %d as read: %w", iteration, err)
			}
		}
	}
	return problem, nil
}

// immediate returns the immediate data of an iteration.
func immediate(k uint64) uint32 { return uint32(k >> 32) }

// atomics runs the iterations of an atomic operation.
func (d *driver) atomics(ctx context.Context, begin control, times *[]time.Duration) (problem, err error) {
	k := key(begin.seed, begin.op, 8, int(begin.first))
	cell := atomicStart(k)
	result := d.mr.Bytes()[:8]
	wr := guestlib.SendWR{
		Opcode: begin.op, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(0, 8)},
		RemoteAddr: d.peer.addr + uint64(d.peer.data) + cellOffset, RKey: d.peer.rkey,
	}
	for i := range int(begin.count) {
		wr.ID = uint64(i)
		after := atomicStep(&wr, k, i, cell)
		binary.LittleEndian.PutUint64(result, 0)
		took, err := d.do(ctx, d.qp, &wr)
		if err != nil {
			return nil, err
		}
		*times = append(*times, took)
		if old := binary.LittleEndian.Uint64(result); old != cell && problem == nil {
			problem = fmt.Errorf("iteration %d found %#x, the model says %#x", i, old, cell)
		}
		cell = after
	}
	return problem, nil
}

// bye ends the connection. The server disconnects, since only the server knows when its last answer
// has arrived.
func (d *driver) bye(ctx context.Context) error {
	if err := d.endQueues(ctx); err != nil {
		return err
	}
	if _, err := d.ask(ctx, control{kind: msgBye}, msgBye); err != nil {
		return err
	}
	select {
	case <-d.qp.Down():
	case <-time.After(stall):
		return errors.New("the peer does not disconnect")
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.qp.Destroy(ctx)
}
