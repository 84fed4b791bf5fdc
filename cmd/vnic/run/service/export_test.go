package service

import (
	"context"
	"log/slog"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Life is a service of which a test plays a part.
type Life struct{ *life }

// Begin prepares an echo service on a function that the test has opened.
func Begin(ctx context.Context, dev *guestlib.Device) (Life, error) {
	v := Life{&life{kind: "echo", dev: dev, log: slog.New(slog.DiscardHandler)}}
	return v, v.prepare(ctx)
}

func (v Life) Datagram() uint32 { return v.ud.qp.Num() }

// Answer answers datagrams until ctx ends.
func (v Life) Answer(ctx context.Context) error { return v.ud.run(ctx) }

// FailOne waits for a datagram, and answers it from memory that is not the service's. What else
// completes meanwhile, such as an earlier answer that failed, is the service's.
func (v Life) FailOne(ctx context.Context) error {
	for {
		var wc [1]guestlib.WC
		n, err := v.ud.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		if n == 1 && (wc[0].Err() != nil || wc[0].Opcode != abi.WCOpRecv) {
			if err := v.ud.completed(ctx, &wc[0]); err != nil {
				return err
			}
			continue
		}
		if n == 1 {
			from, err := guestlib.SourceGID(v.ud.mr.Bytes()[int(wc[0].ID)*v.ud.size:])
			if err != nil {
				return err
			}
			sge := v.ud.mr.SGE(0, 8)
			sge.LKey ^= 0xffff
			return v.ud.qp.PostSend(&guestlib.SendWR{
				ID: wc[0].ID, Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{sge},
				To: guestlib.AHConfig{GID: from}, RemoteQPN: wc[0].SrcQP, RemoteQKey: QKey,
			})
		}
		if err := v.ud.cq.Wait(ctx); err != nil {
			return err
		}
	}
}

// Connect serves a peer that comes up when connect returns.
func (v Life) Connect(ctx context.Context, at guestlib.QPAddress, connect func(context.Context) error) error {
	_, err := v.serve(ctx, at, func(ctx context.Context, _ *end) error { return connect(ctx) })
	return err
}

// Wait waits until the peers have ended.
func (v Life) Wait() { v.running.Wait() }
