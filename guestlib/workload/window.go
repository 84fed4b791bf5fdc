package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// A round of WRITEs by a memory window. The server gives the driver's queue pair access to the
// round's slots only, and revokes it before it compares them. The driver then checks that the key
// is invalid.
//
//	driver                                        server
//	                                              bind the window to the slots
//	WRITE by its key … ◀──────────────────────── READY{key}
//	CHECK ──────────────────────────────────────▶ make the key invalid, compare
//	WRITE once more, refused ◀────────────────── VERDICT

// bind binds the window of q to the first n bytes of the slots and returns the window's key.
func (s *server) bind(ctx context.Context, q *queue, n int) (key uint32, err error) {
	wr := q.mw.Bind(idWindow, s.mr.Bind(0, n, guestlib.RemoteWrite))
	if err := q.qp.PostSend(&wr); err != nil {
		return 0, err
	}
	return q.mw.RKey(), s.done(ctx, idWindow)
}

// unbind ends the binding that bind made for the round.
func (s *server) unbind(ctx context.Context, c control) error {
	q := s.queues[c.op]
	if q == nil || q.mw == nil {
		return nil
	}
	if err := q.qp.PostSend(&guestlib.SendWR{ID: idWindow, Opcode: guestlib.LocalInv, Flags: guestlib.Signaled, Imm: q.mw.RKey()}); err != nil {
		return err
	}
	return s.done(ctx, idWindow)
}

// refused checks that a WRITE with the key of an unbound window is refused.
func (d *driver) refused(ctx context.Context, by *queue, key uint32) (problem string, err error) {
	_, err = d.do(ctx, by.qp, &guestlib.SendWR{
		Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(0, 1)}, RemoteAddr: d.peer.addr, RKey: key,
	})
	var wc *guestlib.WCError
	switch {
	case err == nil:
		return "a WRITE by a window that was taken back succeeded", nil
	case errors.As(err, &wc) && wc.Status == abi.WCRemAccessErr:
		return "", nil
	}
	return "", fmt.Errorf("WRITE by a window that was taken back: %w", err)
}
