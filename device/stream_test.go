package device

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestReplies: each request is answered once with its tag, and a heartbeat comes
// back as it was (DEV-204, DEV-209).
func TestReplies(t *testing.T) {
	w := newWorld(t)
	c := dialRaw(t, w.sockets[0])
	if r := c.hello(abi.FunctionAssigned); r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	want := map[uint64]abi.MsgType{}
	var ask []byte
	for tag := uint64(100); tag < 130; tag++ {
		switch tag % 3 {
		case 0:
			want[tag], ask = abi.MsgRegReply, abi.AppendStruct(ask, tag, &abi.RegRead{Offset: abi.RegMagic, Width: 4})
		case 1:
			want[tag], ask = abi.MsgRegReply, abi.AppendStruct(ask, tag, &abi.RegWrite{Offset: abi.RegMagic, Width: 4})
		default:
			want[tag], ask = abi.MsgHeartbeat, abi.AppendStruct(ask, tag, &abi.Heartbeat{Token: tag << 20})
		}
	}
	c.send(ask)
	for len(want) > 0 {
		h, body, err := c.receive()
		if err != nil {
			t.Fatal(err)
		}
		if want[h.Tag] != h.Type {
			t.Fatalf("%s with tag %d, want %s", h.Type, h.Tag, want[h.Tag])
		}
		delete(want, h.Tag)
		switch h.Tag % 3 {
		case 0:
			var r abi.RegReply
			if r.Unmarshal(body); r.Value != abi.Magic || r.Status != abi.StatusOK {
				t.Errorf("%+v", r)
			}
		case 2:
			var b abi.Heartbeat
			if b.Unmarshal(body); b.Token != h.Tag<<20 {
				t.Errorf("%+v", b)
			}
		}
	}
}

// TestCompletionBeforeEvents: when the events that a command causes leave, its
// completion lies in memory, and an event for it leaves without arming (DEV-505).
func TestCompletionBeforeEvents(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriver(v, 0, 1), newDriver(v, 0, 2) // of one NIC: nothing takes time
	a.setUp()
	b.setUp()
	a.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	a.collect()
	b.collect()
	b.async = nil
	var raw [abi.AdminCmdSize]byte
	cmd := abi.AdminCmd{Opcode: abi.AdminOpCMConnect, ID: 77}
	(&abi.CMConnect{QPN: b.qpn, Service: 6, DGID: a.fn.GID()}).Marshal(cmd.Params[:]) // nobody listens there
	cmd.Marshal(raw[:])
	if err := b.sq.Push(raw[:]); err != nil {
		t.Fatal(err)
	}
	index, _, _ := b.sq.Publish()
	b.ring(abi.DoorbellAdmin, 0, index)
	var async []abi.AsyncEvent
	v.until("the event", func() bool {
		var cqs []uint32
		if cqs, async = b.ch.Waiting(); len(async) == 0 {
			return false
		}
		if !slices.Contains(cqs, abi.AdminCQ) {
			t.Error("no event of the admin CQ")
		}
		if ok, err := b.cq.Poll(raw[:]); err != nil || !ok {
			t.Fatalf("the event is there, the completion is not: %v", err)
		}
		return true
	})
	var cqe abi.AdminCQE
	if cqe.Unmarshal(raw[:]); cqe.ID != 77 || async[0].Type != abi.EventRejected {
		t.Errorf("%+v, %s", cqe, async[0].Type)
	}
}
