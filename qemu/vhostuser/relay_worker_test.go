package vhostuser_test

import (
	"net"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// attachWorker gives a relay a worker for a device.
func attachWorker(t *testing.T, r *vhostuser.Relay, dev vhostuser.Device) {
	t.Helper()
	path, ended := serve(t, dev)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	t.Cleanup(func() {
		r.Detach()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	must(t, r.Attach(conn))
}

// TestWorkerHasTheFeatures: the worker runs rings by the features that the guest's driver has
// taken, whether it was there then or comes later, and by others when the next driver takes those.
func TestWorkerHasTheFeatures(t *testing.T) {
	lost := func(err error) { t.Error(err) }
	r := vhostuser.NewRelay(vhostuser.Relayed{
		Layout: vhostuser.VsockLayout, Features: vhostuser.FeatureVersion1, Config: (&recorder{}).Config,
	}, time.Minute, lost)
	worker := &recorder{}
	attachWorker(t, r, worker)
	f, _ := attach(t, r)
	at := ring(t, f, 0x100000)
	must(t, f.ShareMemory(false))
	for _, features := range []uint64{vhostuser.FeatureVersion1, 0, vhostuser.FeatureVersion1} {
		want := features | vhostuser.FeatureProtocol
		must(t, f.Send(vhostuser.SetFeatures, vhosttest.U64(want)))
		must(t, f.StartRing(0, at))
		must(t, f.EnableRing(0, 1))
		must(t, f.Ask(vhostuser.SetVringCall, vhosttest.U64(0), at.Call)) // its answer says that the ring runs
		if _, st := worker.take(); st.Features != want {
			t.Errorf("the worker has features %#x, want %#x", st.Features, want)
		}
		next := &recorder{}
		attachWorker(t, r, next)
		if _, st := next.take(); st.Features != want {
			t.Errorf("the next worker has features %#x, want %#x", st.Features, want)
		}
		worker = next
		_, err := f.StopRing(0)
		must(t, err)
	}
}
