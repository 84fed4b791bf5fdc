package shard

import (
	"maps"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
)

// TestCreditsThatSaySomething: `vnic show credits` leaves out what is nothing, and what has no limit.
func TestCreditsThatSaySomething(t *testing.T) {
	c := credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: credit.Unlimited, credit.NetBufRx: 1}
	if got, want := counts(c), map[string]uint32{"req-pkt-tx": 3, "net-buf-rx": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
