package guestlib

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Whatever a device sends, the driver does not panic and does not accumulate it.
func FuzzDeviceMessages(f *testing.F) {
	add := func(m abi.Message) {
		b := make([]byte, m.Size())
		m.Marshal(b)
		f.Add(uint16(m.MsgType()), b)
	}
	for t := abi.EventConnectRequest; t <= abi.EventFunctionFault; t++ {
		add(&abi.AsyncEvent{Type: t, Number: 1, PrivLen: 3, Priv: [64]byte{1, 2, 3}})
		add(&abi.AsyncEvent{Type: t, Number: 5, PrivLen: 64})
	}
	add(&abi.ErrorMsg{Code: abi.StatusDenied, Reason: [124]byte{'x'}})
	f.Add(uint16(abi.MsgCQEvent), []byte{0xff, 0xff, 0xff, 0xff, 9, 0, 0, 0})
	f.Fuzz(func(t *testing.T, typ uint16, body []byte) {
		r := newSilentRig(t)
		d := r.qp.dev
		d.cm.init()
		d.events.c = make(chan Event, 4)
		d.objects.qps.add(5, r.qp)
		d.objects.cqs.add(9, r.cq)
		r.cq.wake = make(chan struct{})
		c := newConn(r.qp)
		d.cm.add(1, c)
		a, err := newAdmin(d.stream.Load(), d.pool, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.admin.Store(a)
		before := d.pool.InUse()
		for range 3 {
			_ = d.handle(abi.MsgHeader{Type: abi.MsgType(typ)}, body)
		}
		if n := len(d.cm.conns); n > 1 {
			t.Errorf("%d connections", n)
		}
		if n := d.pool.InUse(); n != before {
			t.Errorf("%d bytes in use, %d before", n, before)
		}
	})
}

// Whatever a device writes into a completion queue is accepted or refused without a panic, and
// nothing is completed that was not posted.
func FuzzCompletions(f *testing.F) {
	good := abi.CQE{WRID: 1, QPN: 5, Opcode: abi.WCOpWrite}
	b := make([]byte, abi.CQESize)
	good.Marshal(b)
	f.Add(b)
	good.Status, good.WRID, good.Opcode = abi.WCWRFlushErr, 2, abi.WCOpRecv
	good.Marshal(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, entry []byte) {
		if len(entry) < abi.CQESize {
			return
		}
		r := newSilentRig(t)
		if err := r.qp.PostSend(&SendWR{ID: 1, Opcode: Write, Flags: Signaled}); err != nil {
			t.Fatal(err)
		}
		if err := r.qp.PostRecv(&RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := r.w.Write(entry[:abi.CQESize]); err != nil {
				t.Fatal(err)
			}
		}
		var wc [8]WC
		n, err := r.cq.Poll(wc[:])
		if n > 1 || err == nil && n != 0 {
			t.Errorf("%d completions of one entry four times, %v", n, err)
		}
	})
}
