package shard

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/thread"
)

// TestPlainHandover checks that frames for ports of another shard reach them unchanged, with their
// offloads, stay intact until the ports have got them, and are refused if there are too many.
func TestPlainHandover(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	devicetest.AddPort(cfg, 0, &config.Port{Name: "vp1"})
	cfg.NIC.Shards = 2
	one := 1
	for i := range cfg.Functions[0].VFs {
		cfg.Functions[0].VFs[i].Shard = &one
	}
	shards := make([]*Shard, 2)
	core, err := controller.NewCore(controller.CoreConfig{NIC: cfg, Shards: 2, Home: func(uint32) int { return 1 }, Rand: devicetest.Seeded(1)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range shards {
		if shards[i], err = New(i, cfg, core.Line(i), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	Join(shards)
	from, to := shards[0].plain.gw.Handover, shards[1]
	port := onlyPort(to)
	packet := append([]byte{0x45, 0, 0, 200, 0, 0, 0x40, 0, 64, 99, 0, 0, 192, 168, 100, 99}, port.Addresses[0].AsSlice()...)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	frame := append(make([]byte, 14), append(packet, bytes.Repeat([]byte{7}, 180)...)...)
	frame[12] = 8 // IPv4
	off := gateway.Offload{GSO: gateway.GSOUDP, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 6}
	var out thread.Output
	now := int64(1e9)
	for round := range 2000 {
		if !from.ToPort(1, 1, port.Function, frame, off) || !from.ToPort(1, 1, port.Function, frame, gateway.Offload{}) {
			t.Fatalf("round %d: not taken", round)
		}
		if given := shards[0].others.Given(); given != 1<<1 {
			t.Fatalf("woken: %b", given)
		}
		now++
		to.Step(now, &thread.Input{}, &out)
		got := to.plain.gw.Output()
		if len(got) != 2 || got[0].Offload != off || got[1].Offload != (gateway.Offload{}) {
			t.Fatalf("round %d: %+v, %v", round, got, to.plain.gw.Stats().Reasons)
		}
		// New frames do not overwrite these.
		from.ToPort(1, 1, port.Function, bytes.Repeat([]byte{0xff}, 60<<10), gateway.Offload{})
		for i := range got {
			if b := bytes.Join(got[i].Parts, nil); got[i].To != port.Endpoint || !bytes.Equal(b[12:], frame[12:]) {
				t.Fatalf("round %d: frame %d is %x", round, i, b)
			}
		}
		to.plain.gw.Done()
		to.Step(now, &thread.Input{}, &out)
		to.plain.gw.Done()
	}
	n := 0
	for from.ToPort(1, 1, port.Function, frame, off) {
		n++
	}
	if n < 100 || n > handover.FlowFrames {
		t.Errorf("%d frames wait at once", n)
	}
	if !from.ToPort(1, 2, port.Function, frame, off) {
		t.Error("no room for what another function sends")
	}
}
