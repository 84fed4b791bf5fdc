package conn

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
)

// TestConnectionHasAShare: without a configured limit, a connection gets a part of its function's
// credits, so that one connection never holds all of them. A function with little gives each
// connection enough for a path. A configured limit is used unchanged.
func TestConnectionHasAShare(t *testing.T) {
	function := credit.New(nil, credit.Cost{1024, 16384, 1024, 65536, 100, 4000, 16384, 2048})
	got := NewCredits(function, credit.NoLimit()).Limit()
	want := credit.Cost{256, 4096, 256, 16384, 64, 2048, credit.Unlimited, credit.Unlimited}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
	set := credit.NoLimit()
	set[credit.ReqPktTx], set[credit.NetPktRx] = 7, 9
	if got := NewCredits(function, set).Limit(); got[credit.ReqPktTx] != 7 || got[credit.NetPktRx] != 9 || got[credit.ReqBufTx] != 4096 {
		t.Errorf("%v where some is set", got)
	}
	free := credit.New(nil, credit.NoLimit())
	if got := NewCredits(free, credit.NoLimit()).Limit(); got != credit.NoLimit() {
		t.Errorf("%v of a function without a limit", got)
	}
	one := credit.Cost{credit.ReqPktTx: 1}
	first, taken := NewCredits(function, credit.NoLimit()), 0
	for first.Take(&one) {
		taken++
	}
	if taken != 256 || !NewCredits(function, credit.NoLimit()).Take(&one) {
		t.Errorf("one connection took %d, and nothing is left for another", taken)
	}
}
