package main

import "testing"

func TestKilledTestsLeaveNothing(t *testing.T) {
	requireGuests(t)
	t.Run("clients", func(t *testing.T) { killedLeavesNothing(t, "TestClientsSurvive", "guest\x00workload", 2) })
	t.Run("guests", func(t *testing.T) { killedLeavesNothing(t, "TestGuestsSurvive", "qemu-system-", 2) })
}
