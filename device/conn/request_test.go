package conn

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEachErrorHasItsStatus: each reason and error of the connection manager has a specific status.
func TestEachErrorHasItsStatus(t *testing.T) {
	for r := cm.ReasonConsumer; r <= cm.ReasonLocal; r++ {
		if st := reasonStatus(r); st == abi.StatusOK {
			t.Errorf("%s: %s", r, st)
		}
	}
	if errorStatus(nil) != abi.StatusOK || errorStatus(cm.ErrNoRoute) != abi.StatusUnreachable || errorStatus(bytes.ErrTooLarge) != abi.StatusNoResources {
		t.Error("statuses of errors")
	}
}
