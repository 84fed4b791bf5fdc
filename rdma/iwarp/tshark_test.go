package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wiretest"
)

// TestWiresharkFollowsAConnection: tshark reads a connection with every kind of message, from the
// request frame to a Terminate, as it was sent: each FPDU with its opcode, queue and number, and every
// CRC right.
func TestWiresharkFollowsAConnection(t *testing.T) {
	w := iwarptest.New(t, 1)
	var stream []wiretest.Segment
	w.Sees = func(from int, b []byte) {
		stream = append(stream, wiretest.Segment{Reply: from == 1, Payload: bytes.Clone(b)})
	}
	p := &pair{Net: w, t: t, link: w.Connect(0, iwarptest.Shape{}, [2]iwarp.Settings{iwarptest.Usual(), iwarptest.Usual()}), now: 1e9}
	for i := range p.ends {
		p.ends[i] = newEndpoint(t)
		p.ends[i].attach(p.link.Conns[i])
		p.ends[i].receives = 10
	}
	for _, e := range p.ends {
		for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm, abi.OpRead} {
			e.post(abi.SendWQE{Opcode: op, Imm: key}, 2000)
			e.post(abi.SendWQE{Opcode: op, Imm: key, Flags: abi.SendSolicited}, 3)
		}
		for _, op := range []abi.Opcode{abi.OpFetchAdd, abi.OpMaskedFetchAdd, abi.OpCmpSwap, abi.OpMaskedCmpSwap} {
			e.post(abi.SendWQE{Opcode: op}, 8)
		}
	}
	p.until(p.over)
	p.ends[0].post(abi.SendWQE{Opcode: abi.OpFetchAdd, RemoteAddr: 4}, 8)
	p.until(p.over)

	fields := []string{wiretest.Malformed, wiretest.BadLength, "iwarp_rdma.opcode", "iwarp_ddp.qn", "iwarp_ddp.msn"}
	rows, good := wiretest.Tshark(t, stream, fields)
	fpdus, seen := 0, map[wire.Opcode]bool{}
	for i, s := range stream {
		if i < 2 { // the frames
			continue
		}
		ulpdu, _, err := wire.ParseFPDU(s.Payload, true)
		h, _, err2 := wire.ParseHeader(ulpdu)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		fpdus++
		seen[h.Opcode] = true
		want := map[string]string{"iwarp_rdma.opcode": fmt.Sprint(uint8(h.Opcode))}
		if info := h.Opcode.Info(); !info.Tagged {
			want["iwarp_ddp.qn"], want["iwarp_ddp.msn"] = fmt.Sprint(info.Queue), fmt.Sprint(h.MSN)
		}
		for _, f := range fields {
			if rows[i][f] != want[f] {
				t.Errorf("segment %d, %v: %s is %q, want %q", i, h.Opcode, f, rows[i][f], want[f])
			}
		}
	}
	if good != fpdus || len(seen) != int(wire.OpAtomicResponse)+1 {
		t.Errorf("%d CRCs of %d are right; opcodes %v", good, fpdus, seen)
	}
}
