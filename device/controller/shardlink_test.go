package controller_test

import (
	"log/slog"
	"testing"

	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestRefusedPacketsCostTheCoreOneCall checks that a shard sends the core one request and needs no
// memory per packet, however many packets of a peer come with another key, in one Step or before
// the core runs. All packets are counted.
func TestRefusedPacketsCostTheCoreOneCall(t *testing.T) {
	core, err := controller.NewCore(controller.CoreConfig{
		NIC: devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"}), Shards: 1, Rand: devicetest.Seeded(1),
		ShardOf: func(uint32) int { return 0 }, Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	link, use := core.ShardLink(0), security.Use{Peer: 2, Tenant: 7}
	link.Serve(func([]controller.Order) {})
	if _, err := core.Keys.Issue(use); err != nil {
		t.Fatal(err)
	}
	link.SPIRefused(use)
	if n := allocs.PerRun(1000, func() { link.SPIRefused(use) }); n != 0 {
		t.Errorf("%v allocations for a refused packet", n)
	}
	if !link.Flush() {
		t.Error("the core does not hear of it")
	}
	link.SPIRefused(use)
	if link.Flush() {
		t.Error("asked again before the core has heard the first")
	}
	var out controller.CoreOutput
	core.Step(1e9, &out)
	if n := core.Manager.CM.Stats().SPIRefused; n != 1003 {
		t.Errorf("%d counted, want 1003", n)
	}
	if link.SPIRefused(use); !link.Flush() {
		t.Error("what comes later is not told")
	}
}
