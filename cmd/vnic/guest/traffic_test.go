package guest_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/guest"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// trafficGuest is the environment variable that makes this program measure plain IP like a guest.
// It holds the guest's address and the other guest's.
const trafficGuest = "VNIC_TEST_TRAFFIC"

// TestPlainIPMeets: two guests measure towards each other and end, even if a client that started
// early gave up while it connected.
func TestPlainIPMeets(t *testing.T) {
	if addresses, ok := os.LookupEnv(trafficGuest); ok {
		var own, peer string
		_, err := fmt.Sscan(addresses, &own, &peer)
		tr := &guest.Traffic{Address: netip.MustParsePrefix(own), Peer: peer, Seconds: 1}
		if err := errors.Join(err, tr.Run(t.Context(), func(l workload.Output) { fmt.Println(l.Kind, l.Text) })); err != nil {
			t.Fatal(err)
		}
		return
	}
	_, err := exec.LookPath("iperf3")
	vnictest.Require(t, err == nil, "iperf3 is not installed")
	netns.Run(t, func() {
		var guests [2]*netns.Space
		var done [2]chan error
		for i := range guests {
			s, err := netns.NewSpace()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			guests[i] = s
		}
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
		if err := errors.Join(netlink.LinkAdd(v), guests[0].Take("a"), guests[1].Take("b")); err != nil {
			t.Fatal(err)
		}
		begin := func(i int) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPlainIPMeets$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=10.9.0.%d/24 10.9.0.%d", trafficGuest, i+1, 2-i))
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := guests[i].Do(cmd.Start); err != nil {
				t.Fatal(err)
			}
			done[i] = make(chan error, 1)
			go func() {
				err := cmd.Wait()
				if err == nil && strings.Count(said.String(), string(workload.KindStream)) != 2 {
					err = errors.New("not every protocol was measured")
				}
				if err != nil {
					err = fmt.Errorf("guest %d: %w\n%s", i+1, err, &said)
				}
				done[i] <- err
			}()
		}
		begin(1)
		if err := guests[0].Do(func() error { return errors.Join(netns.Up("a", "10.9.0.1/24"), giveUp("10.9.0.2:5201")) }); err != nil {
			t.Error(err)
		}
		begin(0)
		for _, d := range done {
			if err := <-d; err != nil {
				t.Error(err)
			}
		}
	})
}

// giveUp connects and disconnects at once.
func giveUp(address string) (err error) {
	for end := time.Now().Add(vnictest.Limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", address, time.Second); err == nil {
			return c.Close()
		}
	}
	return err
}
