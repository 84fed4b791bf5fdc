package device

import (
	"path/filepath"
	"testing"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestARevokedPeerThatIsDownLosesItsKeysAndConnections: a NIC that has ended its link and goes on with its packets
// keeps nothing of what was agreed with it.
func TestARevokedPeerThatIsDownLosesItsKeysAndConnections(t *testing.T) {
	s := newStage(t)
	must(t, s.w.nics[1].links.opened().Close())
	s.w.until("the link is down", func() bool {
		v, err := s.w.nics[0].NIC(t.Context())
		must(t, err)
		return !v.Peers[0].Up
	})
	s.works() // a connection does not need the link
	must(t, cmlink.Revoke(filepath.Join(filepath.Dir(s.w.sockets[0]), "keys"), "2"))
	s.event(abi.EventDisconnected)
	s.w.until("the keys are forgotten", func() bool { return s.w.counter(0, "psp.rx_sas") == 0 })
}
