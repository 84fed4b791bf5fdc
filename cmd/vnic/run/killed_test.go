package run_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

func TestKilledTestsLeaveNothing(t *testing.T) {
	vnictest.RequireGuests(t)
	t.Run("clients", func(t *testing.T) { vnictest.KilledLeavesNothing(t, "TestClientsSurvive", "guest\x00workload", 2) })
	t.Run("guests", func(t *testing.T) { vnictest.KilledLeavesNothing(t, "TestGuestsSurvive", "qemu-system-", 2) })
}
