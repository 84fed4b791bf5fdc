package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// server offers its memory to a driver and checks what arrives.
type server struct {
	*endpoint
	out *printer

	round    control
	problem  string // the first problem of the round
	received int    // number of completed receives of the round
}

// serve serves one driver until the driver sends BYE.
func (s *server) serve(ctx context.Context, cfg *Config) error {
	if err := s.accept(ctx, cfg); err != nil {
		return err
	}
	for {
		c, err := s.control(ctx)
		if err != nil {
			return err
		}
		s.achieved = time.Now()
		switch c.kind {
		case msgBegin:
			ready, err := s.begin(ctx, c, cfg.PeerGID)
			if err != nil {
				return err
			}
			if err := s.reply(ctx, ready); err != nil {
				return err
			}
		case msgCheck:
			if err := s.unbind(ctx, c); err != nil {
				return err
			}
			if err := s.late(ctx); err != nil {
				return err
			}
			if s.checkMemory(); s.problem != "" {
				s.out.progress("%s of %d bytes: %s", name(s.round.op), s.round.size, s.problem)
			}
			if err := s.expectControl(0); err != nil {
				return err
			}
			if err := s.reply(ctx, control{kind: msgVerdict, problem: s.problem[:min(len(s.problem), maxProblem)]}); err != nil {
				return err
			}
		case msgBye:
			return s.farewell(ctx, cfg)
		default:
			return fmt.Errorf("control message %d from the driver", c.kind)
		}
	}
}

// datagramTime is how long the server waits for datagrams before they count as lost.
const datagramTime = 10 * time.Second

// late waits for the datagrams of the round that CHECK has overtaken. That can happen because their
// sends complete when the NIC has copied them, and because they travel on another connection than
// CHECK.
func (s *server) late(ctx context.Context) error {
	if s.round.op != Datagram {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, datagramTime)
	defer cancel()
	for s.received < int(s.round.count) {
		wc, err := s.next(soon)
		switch {
		case err != nil && soon.Err() != nil && ctx.Err() == nil:
			return nil // lost; check reports it
		case err != nil:
			return err
		case wc.ID >= idControl:
			return fmt.Errorf("completion of work request %d while datagrams were due", wc.ID)
		}
		s.arrived(wc)
	}
	return nil
}

// farewell ends the connection after the driver's BYE.
func (s *server) farewell(ctx context.Context, cfg *Config) error {
	end := func() error {
		if err := s.reply(ctx, control{kind: msgBye}); err != nil {
			return err
		}
		if err := s.endQueues(ctx); err != nil {
			return err
		}
		if err := s.qp.Disconnect(ctx); err != nil {
			return err
		}
		return s.qp.Destroy(ctx)
	}
	err := end()
	if err != nil && cfg.Recover > 0 && s.interrupted(ctx, err) { // the driver does not need the answer
		return s.renew(ctx, cfg.Recover)
	}
	return err
}

// accept waits for the driver.
func (s *server) accept(ctx context.Context, cfg *Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.MeetTimeout, fmt.Errorf("the peer did not come within %v", cfg.MeetTimeout))
	defer cancel()
	if err := s.newQP(ctx); err != nil {
		return err
	}
	if err := s.expectControl(0); err != nil {
		return err
	}
	l, err := s.dev.Listen(ctx, cfg.Service)
	if err != nil {
		return err
	}
	defer l.Close(context.WithoutCancel(ctx))
	s.out.progress("serving at service %d", cfg.Service)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("accept: %w", err)
		}
		if r.GID != cfg.PeerGID || string(r.Private) != welcomeMagic {
			s.out.progress("request of %s rejected: the peer is %s", r.GID, cfg.PeerGID)
			if err := r.Reject(ctx, uint32(abi.StatusDenied), nil); err != nil {
				return err
			}
			continue
		}
		w := welcome{addr: s.mr.Addr(), rkey: s.mr.RKey(), data: uint32(s.data)}
		return r.Accept(ctx, s.qp, w.marshal())
	}
}

// control returns the next control message. Before it returns it checks the receives of the round's
// data, which complete earlier.
func (s *server) control(ctx context.Context) (control, error) {
	for {
		wc, err := s.next(ctx)
		if err != nil {
			return control{}, err
		}
		if wc.ID >= idControl {
			return s.endpoint.received(wc)
		}
		s.arrived(wc)
	}
}

// reply sends an answer and waits until the driver has got it. Messages that arrive meanwhile are
// kept for control.
func (s *server) reply(ctx context.Context, c control) error {
	if err := s.send(c); err != nil {
		return err
	}
	if err := s.done(ctx, idControlSend); err != nil {
		return fmt.Errorf("answer %d: %w", c.kind, err)
	}
	return nil
}

// done waits for the completion of one work request. Other completions are kept for control.
func (s *server) done(ctx context.Context, id uint64) error {
	var early []guestlib.WC
	for {
		wc, err := s.next(ctx)
		if err != nil {
			return err
		}
		if wc.ID == id {
			s.have = append(early, s.have...)
			return nil
		}
		early = append(early, wc)
	}
}

// begin prepares the memory and the receives of a round; the receive for CHECK is the last. It
// returns the answer.
func (s *server) begin(ctx context.Context, c control, peer guestlib.GID) (ready control, err error) {
	ready.kind = msgReady
	post := s.qp.PostRecv
	s.round, s.problem, s.received = c, "", 0
	size, per, n := int(c.size), slotSize(int(c.size)), int(c.count)
	if n < 1 || n > maxRound || size < 0 || per*n > s.data {
		return ready, fmt.Errorf("the driver asks for %d iterations of %d bytes, which do not fit %d bytes", n, size, s.data)
	}
	if special(c.op) {
		q, err := s.receiving(ctx, c.op, guestlib.QPAddress{GID: peer, QPN: c.qpn})
		if err != nil {
			return ready, fmt.Errorf("%s: %w", name(c.op), err)
		}
		post, ready.qpn, ready.srqn = q.post, q.qp.Num(), q.srqn
		if q.mw != nil {
			if ready.key, err = s.bind(ctx, q, n*per); err != nil {
				return ready, fmt.Errorf("%s: %w", name(c.op), err)
			}
		}
	}
	if atomic(c.op) {
		fillCanary(s.cell())
		binary.LittleEndian.PutUint64(s.cell()[cellOffset:], atomicStart(key(c.seed, c.op, 8, int(c.first))))
	}
	for i := range n {
		iteration := int(c.first) + i
		if !atomic(c.op) {
			fillCanary(s.slot(i, per))
		}
		off := remoteOffset(iteration)
		wr := guestlib.RecvWR{ID: uint64(i)}
		switch c.op {
		case guestlib.Read:
			fill(s.slot(i, per)[off:off+size], key(c.seed, c.op, size, iteration))
			continue
		case Datagram:
			wr.SGL = []guestlib.SGE{s.mr.SGE(s.data+grhStart, guestlib.GRHSize), s.mr.SGE(i*per+off, size+1)}
		case guestlib.Send, guestlib.SendImm, Shared, Extended, Wired:
			wr.SGL = []guestlib.SGE{s.mr.SGE(i*per+off, size+1)} // one byte more than the message
		case guestlib.WriteImm:
		default:
			continue
		}
		if err := post(&wr); err != nil {
			return ready, err
		}
	}
	return ready, s.expectControl(0)
}

// complain records a problem, if it is the round's first.
func (s *server) complain(format string, args ...any) {
	if s.problem == "" {
		s.problem = fmt.Sprintf(format, args...)
	}
}

// arrived checks the completion of a receive of the round.
func (s *server) arrived(wc guestlib.WC) {
	iteration := int(s.round.first) + s.received
	if int(wc.ID) != s.received {
		s.complain("receive %d completed where %d was due", wc.ID, s.received)
	}
	s.received++
	size := s.round.size
	if s.round.op == Datagram {
		size += guestlib.GRHSize
	}
	if wc.ByteLen != size {
		s.complain("iteration %d: %d bytes reported", iteration, wc.ByteLen)
	}
	want := immediate(key(s.round.seed, s.round.op, int(s.round.size), iteration))
	switch {
	case s.round.op == guestlib.Send:
		if wc.Flags&guestlib.WCWithImm != 0 {
			s.complain("iteration %d: immediate data nobody sent", iteration)
		}
	case wc.Flags&guestlib.WCWithImm == 0 || wc.Imm != want:
		s.complain("iteration %d: immediate data %#x (flags %#x), want %#x", iteration, wc.Imm, wc.Flags, want)
	}
}

// checkMemory compares the memory after a round.
func (s *server) checkMemory() {
	c := s.round
	size, per := int(c.size), slotSize(int(c.size))
	if receives(c.op) && s.received != int(c.count) {
		s.complain("%d of %d receives completed", s.received, c.count)
	}
	if atomic(c.op) {
		s.checkCell(c)
		return
	}
	for i := range int(c.count) {
		iteration := int(c.first) + i
		if err := checkSlot(s.slot(i, per), remoteOffset(iteration), size, key(c.seed, c.op, size, iteration)); err != nil {
			s.complain("iteration %d: %v", iteration, err)
		}
	}
}

func (s *server) checkCell(c control) {
	k := key(c.seed, c.op, 8, int(c.first))
	want, wr := atomicStart(k), guestlib.SendWR{Opcode: c.op}
	for i := range int(c.count) {
		want = atomicStep(&wr, k, i, want)
	}
	b := s.cell()
	if got := binary.LittleEndian.Uint64(b[cellOffset:]); got != want {
		s.complain("the cell is %#x, the model says %#x", got, want)
	}
	if touched(b[:cellOffset]) >= 0 || touched(b[cellOffset+8:]) >= 0 {
		s.complain("memory beside the cell was overwritten")
	}
}
