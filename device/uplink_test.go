package device

import (
	"errors"
	"os"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
)

const tapMTU = 9000

// onTAPs runs f with two NICs whose uplinks are TAPs on a bridge in a network namespace of their
// own. superframes is uplink.superframes of each NIC; change may alter more.
func onTAPs(t testing.TB, superframes [2]string, f func(w *world), change ...func(i int, c *config.Config)) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	netns.Run(t, func() {
		if err := tap.NewBridge("br0", tapMTU); err != nil {
			t.Fatal(err)
		}
		var cfgs [2]*config.Config
		uplink := func(name string) (tap.Uplink, error) {
			for _, c := range cfgs {
				if c != nil && c.NIC.Name == name {
					return openTAP(c, nil)
				}
			}
			return nil, errors.New("no such NIC")
		}
		w := newWorldWith(t, uplink, func(i int, c *config.Config) {
			u := &c.Uplink
			u.Backend, u.Name, u.Bridge, u.MTU, u.Superframes = config.BackendNative, c.NIC.Name, "br0", tapMTU, superframes[i]
			cfgs[i] = c
			for _, f := range change {
				f(i, c)
			}
		})
		defer func() { // before the namespace goes
			for i := range w.stop {
				if err := w.stop[i](); err != nil {
					t.Error(err)
				}
			}
		}()
		freely(t, func() { f(w) })
	})
}

// freely runs f in a goroutine that may run on any thread, as clients do: a goroutine locked to the
// namespace's thread pays a switch of threads each time it waits or yields.
func freely(t testing.TB, f func()) {
	t.Helper()
	finished, done := false, make(chan struct{})
	go func() {
		defer close(done)
		f()
		finished = true
	}()
	<-done
	switch {
	case finished:
	case t.Skipped():
		t.SkipNow()
	default:
		t.FailNow()
	}
}

// TestMessagesArriveWithAndWithoutSuperframes checks that messages of every size arrive complete between NICs with and without
// superframes, that superframes are used where a NIC may use them, and that every packet in them is
// counted once. The first NIC's TAP has one queue, the second's three.
func TestMessagesArriveWithAndWithoutSuperframes(t *testing.T) {
	for name, modes := range map[string][2]string{
		"both":     {config.SuperframesAuto, config.SuperframesAuto},
		"sender":   {config.SuperframesAuto, config.SuperframesOff},
		"receiver": {config.SuperframesOff, config.SuperframesAuto},
		"neither":  {config.SuperframesOff, config.SuperframesOff},
	} {
		t.Run(name, func(t *testing.T) {
			onTAPs(t, modes, func(w *world) {
				if n := w.nics[1].units[0].uplink.Capabilities().Queues; n != 3 {
					t.Errorf("%d queues", n)
				}
				if modes[0] == config.SuperframesAuto && !w.nics[0].units[0].uplink.Capabilities().USO {
					t.Skip("this kernel has no UDP segmentation offload for TAPs (Linux 6.2)")
				}
				x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
				connect(t, x, y, 1)
				from, to := x.mr.Bytes(), y.mr.Bytes()
				for i := range from {
					from[i] = byte(i * 2654435761 >> 13)
				}
				for _, n := range []int{1, 64, 4096, 65536, 1 << 20} {
					clear(to)
					x.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{x.mr.SGE(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
					if string(to[:n]) != string(from[:n]) {
						t.Fatalf("%d bytes differ", n)
					}
				}
				sent, came := w.counter(0, "uplink.tx_superframes"), w.counter(1, "uplink.rx_superframes")
				if (sent > 0) != (modes[0] == config.SuperframesAuto) {
					t.Errorf("%d superframes sent", sent)
				}
				if (came > 0) != (name == "both") {
					t.Errorf("%d superframes came", came)
				}
				for i := range w.nics {
					for _, c := range []string{"drop.psp_malformed", "drop.psp_auth", "uplink.rx_dropped", "uplink.tx_dropped"} {
						if n := w.counter(i, c); n != 0 {
							t.Errorf("NIC %d: %s is %d", i+1, c, n)
						}
					}
				}
				counts, err := w.nics[1].Counters(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// drop.falcon: packets sent again on a busy machine.
				if got, want := counts["underlay.deliver"], counts["shard.rx_packets"]+counts["drop.falcon"]; got != want {
					t.Errorf("the underlay delivered %d packets, %d are accounted for", got, want)
				}
			}, func(i int, c *config.Config) { c.Uplink.Queues = 1 + 2*i })
		})
	}
}
