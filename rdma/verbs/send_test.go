package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestFormOfAnEntry: inline data is bounded by its length, other data by its SGEs, and the field of
// the other kind is not looked at (DRV-608).
func TestFormOfAnEntry(t *testing.T) {
	s := &sender{half: half{owner: &Owner{}}, works: sendRing{maxSGE: 4, maxInline: 192}}
	for _, tc := range []struct {
		x    abi.SendWQE
		room uint32 // behind the header
		want abi.Clause
	}{
		{abi.SendWQE{NumSGE: 4, InlineLen: 193}, 192, 0},
		{abi.SendWQE{NumSGE: 5}, 192, abi.DRV608},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 192, NumSGE: 5}, 192, 0},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 193}, 192, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpBindMW}, 24, 0},
		{abi.SendWQE{Opcode: abi.OpBindMW}, 23, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpRegMR}, 40, 0},
		{abi.SendWQE{Opcode: abi.OpRegMR}, 39, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpLocalInv}, 0, 0},
	} {
		s.queue.read = abi.SendWQEHeader + tc.room
		if got := s.brokenBy(&SendWR{Request: transport.Request{WQE: tc.x}}); got != tc.want {
			t.Errorf("%+v breaks %s, want %s", tc.x, got, tc.want)
		}
	}
}

// TestReservedOfAnEntry: what follows the header of a BindMW has reserved bits too (DRV-102).
func TestReservedOfAnEntry(t *testing.T) {
	entry := func(op abi.Opcode, flags uint8, access uint32) (*SendWR, []byte) {
		w := &SendWR{Request: transport.Request{WQE: abi.SendWQE{Opcode: op, Flags: flags}}, bind: abi.BindMW{Access: access}}
		b := make([]byte, 1<<7)
		w.WQE.Marshal(b)
		w.bind.Marshal(b[abi.SendWQEHeader:])
		return w, b
	}
	for _, tc := range []struct {
		op     abi.Opcode
		flags  uint8
		access uint32
		want   bool
	}{
		{abi.OpBindMW, abi.SendSignaled, abi.AccessRemoteRead, false},
		{abi.OpBindMW, 0, 1 << 9, true},
		{abi.OpBindMW, 0x80, 0, true},
		{abi.OpWrite, abi.SendFence, 1 << 9, false}, // an SGE lies there
		{abi.OpWrite, 0x10, 0, true},
	} {
		w, b := entry(tc.op, tc.flags, tc.access)
		if got := w.reserved(b); got != tc.want {
			t.Errorf("%s, flags %#x, access %#x: %t", tc.op, tc.flags, tc.access, got)
		}
	}
	w, b := entry(abi.OpBindMW, 0, 1<<9)
	if w.reserved(b[:abi.SendWQEHeader]) {
		t.Error("looked behind the entry")
	}
}
