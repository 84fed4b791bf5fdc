package iwarp_test

import (
	"maps"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// TestTracesFollowRequestsAtBothEnds: what is recorded of a request at the end that sends it and at the
// one that carries it out, while their functions are traced; of other queue pairs nothing is.
func TestTracesFollowRequestsAtBothEnds(t *testing.T) {
	type kinds map[trace.Kind]int
	for _, c := range []struct {
		name      string
		x         abi.SendWQE
		n         int
		qpn       uint32 // that is traced; 0: all
		requester kinds
		responder kinds
		wanted    int // completions that follow
	}{
		{
			"SEND of two FPDUs",
			abi.SendWQE{Opcode: abi.OpSend},
			2000, 0,
			kinds{trace.Issued: 1, trace.Scheduled: 2, trace.Sealed: 2, trace.Acked: 2},
			kinds{trace.Received: 2, trace.Opened: 2, trace.Delivered: 2, trace.Gone: 2},
			1,
		},
		{
			"WRITE",
			abi.SendWQE{Opcode: abi.OpWrite},
			8, 1,
			kinds{trace.Issued: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Acked: 1},
			kinds{trace.Received: 1, trace.Opened: 1, trace.Delivered: 1, trace.Gone: 1},
			0,
		},
		{
			"WRITE with immediate data",
			abi.SendWQE{Opcode: abi.OpWriteImm},
			8, 0,
			kinds{trace.Issued: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Acked: 1},
			kinds{trace.Received: 2, trace.Opened: 2, trace.Delivered: 2, trace.Gone: 2},
			1,
		},
		{
			"READ of two FPDUs",
			abi.SendWQE{Opcode: abi.OpRead},
			2000, 0,
			kinds{trace.Issued: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Acked: 1},
			kinds{trace.Received: 1, trace.Opened: 1, trace.Delivered: 1, trace.Scheduled: 2, trace.Sealed: 2, trace.Gone: 1},
			0,
		},
		{
			"atomic",
			abi.SendWQE{Opcode: abi.OpFetchAdd},
			8, 0,
			kinds{trace.Issued: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Acked: 1},
			kinds{trace.Received: 1, trace.Opened: 1, trace.Delivered: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Gone: 1},
			0,
		},
		{"refused READ", abi.SendWQE{Opcode: abi.OpRead, RKey: 5}, 8, 0, kinds{trace.Issued: 1, trace.Scheduled: 1, trace.Sealed: 1, trace.Acked: 1}, kinds{trace.Received: 1, trace.Opened: 1}, 0},
		{"of another queue pair", abi.SendWQE{Opcode: abi.OpRead}, 8, 99, kinds{}, kinds{}, 0},
	} {
		p := newPair(t, 1, iwarptest.Shape{})
		p.until(func() bool { return p.Engines[1].Stats().Received > 0 }) // the message with which it begins
		var rings [2]*trace.Ring
		for i, e := range p.ends {
			rings[i] = trace.NewRing(64, func() int64 { return int64(p.now) }, c.qpn)
			e.account.Trace = rings[i]
		}
		p.ends[1].receives = 1
		p.ends[0].post(c.x, c.n)
		p.until(p.over)
		for i, want := range []kinds{c.requester, c.responder} {
			list, _ := rings[i].Take(nil)
			got, wanted, last := kinds{}, 0, map[trace.Kind]uint32{}
			for _, e := range list {
				got[e.Kind]++
				if e.Kind == trace.Delivered && e.Flags&trace.Wanted != 0 {
					wanted++
				}
				if e.Kind == trace.Delivered && (&trace.Operation{Wire: e.Wire}).Over().Name != iwarp.Name {
					t.Errorf("%s: wire %d", c.name, e.Wire)
				}
				if before, ok := last[e.Kind]; ok && (e.Kind == trace.Scheduled || e.Kind == trace.Received) && e.Extra <= before {
					t.Errorf("%s: FPDU %d behind %d", c.name, e.Extra, before)
				}
				last[e.Kind] = e.Extra
			}
			if !maps.Equal(got, want) || i == 1 && wanted != c.wanted {
				t.Errorf("%s, end %d: %v, completions %d", c.name, i, got, wanted)
			}
		}
	}
}
