package perf

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// slotAlign is what slots of messages are aligned to, in bytes.
const slotAlign = 64

// qkey is that of the queue pairs of datagrams: perftest's.
const qkey = 0x11111111

// session is one side of a test that both agreed on.
type session struct {
	*Config
	client   bool
	dev      *guestlib.Device
	pd       *guestlib.PD
	ctl      *control
	mr       *guestlib.MR
	remote   []region     // the peer's memory for each queue pair
	foreign  bool         // the other end is a program of perftest
	around   int          // foreign: its small messages wrap around in a buffer of so many bytes
	scq      *guestlib.CQ // of sends
	rcq      *guestlib.CQ // of receives
	qps      []*guestlib.QP
	ah       *guestlib.AH // Datagrams: to the peer
	peers    []uint32     // and its queue pairs
	slot     int          // bytes of a message, rounded up to whole lines
	epoch    time.Time
	done     int // sends of this row completed
	received int // messages of this row
	wcs      [32]guestlib.WC
}

// receives reports whether messages come to this side that need receives.
func (s *session) receives() bool { return s.Op == Send && (!s.client || s.Bidirectional || s.Latency) }

// pingpong reports whether the server answers each message with one.
func (s *session) pingpong() bool { return s.Latency && (s.Op == Write || s.Op == Send) }

// leads reports whether this side sends the first message of a ping-pong: the client, but perftest's
// write_lat has the server do it.
func (s *session) leads() bool { return s.client != (s.foreign && s.Op == Write) }

const access = guestlib.LocalWrite | guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic

// prepare makes what the test needs of this side.
func (s *session) prepare(ctx context.Context) error {
	s.slot = max((s.Size+slotAlign-1)/slotAlign*slotAlign, s.around)
	if s.Inline = min(s.Inline, int(s.dev.Limits().MaxInline)); s.Op == Read || s.Op == Atomic {
		s.Inline = 0
	}
	buf, err := s.dev.Alloc((2*s.slot + slotAlign) * s.QPs)
	if err != nil {
		return fmt.Errorf("%d queue pairs with two messages of %d bytes: %w", s.QPs, s.Size, err)
	}
	if s.mr, err = s.pd.RegMR(ctx, buf, access); err != nil {
		return err
	}
	if s.scq, err = s.dev.CreateCQ(ctx, s.QPs*s.TxDepth); err != nil {
		return fmt.Errorf("%d queue pairs with %d sends: %w", s.QPs, s.TxDepth, err)
	}
	depth := 1
	if s.receives() {
		depth = s.RxDepth
	}
	if s.rcq, err = s.dev.CreateCQ(ctx, s.QPs*depth); err != nil {
		return fmt.Errorf("%d queue pairs with %d receives: %w", s.QPs, depth, err)
	}
	for range s.QPs {
		cfg := guestlib.QPConfig{
			SendCQ: s.scq, RecvCQ: s.rcq, SendEntries: s.TxDepth, RecvEntries: depth, MaxInline: s.Inline, Access: access,
			PathMTU: s.MTU, Timeout: uint8(s.Timeout), ReadAtomic: uint8(s.Outs),
		}
		if s.Datagrams {
			cfg = guestlib.QPConfig{
				Type: guestlib.UD, QKey: qkey, SendCQ: s.scq, RecvCQ: s.rcq, SendEntries: s.TxDepth, RecvEntries: depth, MaxRecvSGE: 2, MaxInline: s.Inline,
			}
		}
		qp, err := s.pd.CreateQP(ctx, cfg)
		if err != nil {
			return err
		}
		if !s.Datagrams && s.Path != (guestlib.Path{}) {
			if err := qp.SetPath(ctx, s.Path); err != nil {
				return err
			}
		}
		s.qps = append(s.qps, qp)
		for i := 0; s.receives() && i < depth; i++ {
			if err := s.postRecv(len(s.qps) - 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Each queue pair has two slots: what is sent or read into, and what the peer writes, reads or
// sends to.
func (s *session) local(qp int) int { return 2 * qp * s.slot }
func (s *session) inbox(qp int) int { return (2*qp + 1) * s.slot }

// headers returns where the headers of a datagram go.
func (s *session) headers(qp int) int { return 2*s.QPs*s.slot + qp*slotAlign }

func (s *session) postRecv(qp int) error {
	sgl := []guestlib.SGE{s.mr.SGE(s.headers(qp), guestlib.GRHSize), s.mr.SGE(s.inbox(qp), s.slot)}
	if !s.Datagrams {
		sgl = sgl[1:]
	}
	return s.qps[qp].PostRecv(&guestlib.RecvWR{ID: uint64(qp), SGL: sgl})
}

func (s *session) region() region { return region{s.mr.Addr(), s.mr.RKey()} }

// reach takes the memory of a peer that laid it out as prepare does.
func (s *session) reach(r region) {
	for i := range s.qps {
		s.remote = append(s.remote, region{r.addr + uint64(s.inbox(i)), r.rkey})
	}
}

func (s *session) now() time.Duration { return time.Since(s.epoch) }

// idle is what a poll that found nothing does. Yielding lets the goroutine write that sends
// doorbells where no window does.
func (s *session) idle(ctx context.Context, cq *guestlib.CQ) error {
	if s.Events {
		return cq.Wait(ctx)
	}
	runtime.Gosched()
	return ctx.Err()
}

// lost returns an error unless the queue pair is connected.
func lost(qp *guestlib.QP) error {
	if qp.State() == abi.QPStateRTS {
		return nil
	}
	return errors.New("the peer ended the connection")
}

// request is the work request of message seq on a queue pair.
func (s *session) request(wr *guestlib.SendWR, sge []guestlib.SGE, qp, size int) {
	sge[0] = s.mr.SGE(s.local(qp), size)
	*wr = guestlib.SendWR{SGL: sge, RemoteAddr: s.remote[qp].addr, RKey: s.remote[qp].rkey}
	switch s.Op {
	case Write:
		wr.Opcode = guestlib.Write
	case Read:
		wr.Opcode = guestlib.Read
	case Send:
		if wr.Opcode = guestlib.Send; s.Datagrams {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = s.ah, s.peers[qp], qkey
		}
	case Atomic:
		if wr.Opcode, wr.CompareAdd = guestlib.FetchAdd, 1; s.CmpSwap {
			wr.Opcode, wr.CompareAdd, wr.Swap = guestlib.CmpSwap, 0, 0
		}
	}
	if size <= s.Inline {
		wr.SGL, wr.Inline = nil, s.mr.Bytes()[s.local(qp):][:size]
	}
}

// post posts one send, when there is room.
func (s *session) post(ctx context.Context, qp int, wr *guestlib.SendWR) error {
	for {
		err := s.qps[qp].PostSend(wr)
		if !errors.Is(err, guestlib.ErrQueueFull) {
			return err
		}
		if err := s.collect(ctx); err != nil {
			return err
		}
	}
}

// drain waits until n sends of this row have completed.
func (s *session) drain(ctx context.Context, n int) error {
	for s.done < n {
		if err := s.collect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// collect takes completions of sends that are all signaled, or waits a little for them.
func (s *session) collect(ctx context.Context) error {
	n, err := s.scq.Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		if err := s.wcs[i].Err(); err != nil {
			return err
		}
	}
	s.done += n
	if err != nil || n > 0 {
		return err
	}
	return errors.Join(lost(s.qps[0]), s.idle(ctx, s.scq))
}

// refill gives back the receives that were used.
func (s *session) refill() error {
	n, err := s.rcq.Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		if err := s.wcs[i].Err(); err != nil {
			return err
		}
		if err := s.postRecv(int(s.wcs[i].ID)); err != nil {
			return err
		}
		s.received++
	}
	return err
}

// byteAt looks at a byte that the device may write at any time.
func byteAt(m []byte, i int) byte {
	v, err := ring.Mem(m).Load32(uint64(i) &^ 3)
	if err != nil {
		return 0
	}
	return byte(v >> (8 * (i & 3)))
}
