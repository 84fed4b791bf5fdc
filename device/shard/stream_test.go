package shard

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestCompletionBeforeEvents checks that when the events that a command causes are sent, its
// completion is already in memory, and an event for it is sent without arming (DEV-505).
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
