package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestFormOfAnEntry: inline data is bounded by its length, other data by its SGEs, and the field of
// the other kind is not looked at (F65, DRV-608).
func TestFormOfAnEntry(t *testing.T) {
	q := &QP{owner: &Owner{}, requester: requester{req: sendRing{maxSGE: 4, maxInline: 192}}}
	q.requester.q = q
	for _, tc := range []struct {
		x    abi.SendWQE
		want abi.Clause
	}{
		{abi.SendWQE{NumSGE: 4, InlineLen: 193}, 0},
		{abi.SendWQE{NumSGE: 5}, abi.DRV608},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 192, NumSGE: 5}, 0},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 193}, abi.DRV608},
	} {
		if got := q.brokenBy(&SendWR{Request: transport.Request{WQE: tc.x}}); got != tc.want {
			t.Errorf("%+v breaks %s, want %s", tc.x, got, tc.want)
		}
	}
}
