package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTheNodeGUIDIsMadeOfTheMAC: the device's GUID is the EUI-64 of its MAC address.
func TestTheNodeGUIDIsMadeOfTheMAC(t *testing.T) {
	f, _ := newDevice(t, 0x01_1001)
	f.MAC = [6]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}
	r, st := (&commands{f: f}).QueryDevice()
	if st != abi.StatusOK || r.NodeGUID != 0x1034_56ff_fe78_9abc {
		t.Errorf("%#x, %v", r.NodeGUID, st)
	}
}
