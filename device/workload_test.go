package device

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// TestTheWorkloadDeliversEveryByte runs all operations between two clients, of two NICs and of one, and verifies every
// byte.
func TestTheWorkloadDeliversEveryByte(t *testing.T) {
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprintf("%d shards", n), func(t *testing.T) {
			useShards(t, n)
			testWorkload(t)
		})
	}
}

func testWorkload(t *testing.T) {
	runWorkload(t, newWorld(t))
}

// TestWorkloadOverRoCE runs them where functions speak RoCEv2 only.
func TestWorkloadOverRoCE(t *testing.T) {
	w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
		c.RDMA.Transport = config.TransportRoCE
		for vf := range c.Functions[0].VFs {
			devicetest.AddPort(c, vf, &config.Port{Name: fmt.Sprintf("vp%d%d", i+1, vf+1)})
		}
	})
	runWorkload(t, w)
	if w.counter(0, "roce.sent") == 0 {
		t.Error("nothing went over RoCEv2")
	}
}

func runWorkload(t *testing.T, w *world) {
	for name, peer := range map[string]struct {
		nic int
		url string
		gid string
	}{
		"two NICs": {1, "pf0.vf1", "192.168.100.21"},
		"one NIC":  {0, "pf0.vf2", "192.168.100.12"},
	} {
		t.Run(name, func(t *testing.T) {
			var out [2]bytes.Buffer
			var wg sync.WaitGroup
			for i, c := range []struct {
				nic       int
				url, peer string
			}{{0, "pf0.vf1", peer.gid}, {peer.nic, peer.url, "192.168.100.11"}} {
				gid, err := guestlib.ParseGID(c.peer)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					err := workload.Run(testContext(t), workload.Config{
						URL: fmt.Sprintf("unix://%s?function=%s", w.sockets[c.nic], c.url), PeerGID: gid, First: i == 0, Service: 5,
						Count: 3, Sizes: []int{1, 1000, 4096, 9000}, Out: &out[i],
					})
					if err != nil {
						t.Errorf("%s: %v", c.url, err)
					}
				})
			}
			wg.Wait()
			for i := range out {
				for _, op := range []string{"UD SEND", "SRQ SEND", "XRC SEND", "WIRED SEND", "WINDOW WRITE", "LOOPBACK SEND", "MASKED_CMP_SWAP"} {
					if !bytes.Contains(out[i].Bytes(), []byte(`"op":"`+op+`"`)) {
						t.Errorf("side %d: no row %s", i, op)
					}
				}
				if t.Failed() {
					t.Log(out[i].String())
				}
			}
		})
	}
}
