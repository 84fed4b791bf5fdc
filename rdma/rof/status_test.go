package rof

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/abi/schema"
	"github.com/falcon-vnic/vnic/rdma/ib"
)

// known reports whether the ABI has the status.
func known(st abi.WCStatus) bool {
	return slices.ContainsFunc(schema.Current.Enum("WCStatus").Values, func(v schema.Value) bool { return v.Value == uint64(st) })
}

// TestEveryCompletionCodeHasAKnownStatus: every completion code of Falcon has a status that the ABI knows, and success
// has one only.
func TestEveryCompletionCodeHasAKnownStatus(t *testing.T) {
	for code := range falcon.Completion(16) {
		for syn := range 256 {
			st := completionStatus(code, ib.Syndrome(syn))
			if (st == abi.WCSuccess) != (code == falcon.CmplAck) || !known(st) {
				t.Fatalf("%v with syndrome %#x: %v", code, syn, st)
			}
		}
	}
}
