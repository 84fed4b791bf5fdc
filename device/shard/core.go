package shard

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Core is what a shard asks of what there is once for the NIC. Nothing of it waits: what is asked
// in a Step goes over at its end (Flush), and the core answers by Orders.
type Core interface {
	conn.Requests
	security.Requester
	// SPIRefused says that a packet of a connection came with another key than the one issued for
	// it.
	SPIRefused(u security.Use)
	// Knows reports whether a GID in a tenant is a function's, here or at a peer.
	Knows(tenant uint32, gid [16]byte) bool
	VFs
	// Opener opens what peers seal with the keys that the core issues.
	Opener() *security.Opener
	// Credits is the shard's tree at the level of the host; the NIC's is above it.
	Credits() *credit.Node
	// Routes say where plain IP goes. SetPort and RemovePort change them.
	Routes() *gateway.Routes
	SetPort(function uint32, at gateway.Place)
	RemovePort(function uint32)
	// Flush sends what was asked, and reports whether there was something.
	Flush() bool
}

// VFs is what a shard asks of functions as they are set, of which it has a part.
type VFs interface {
	// Functions calls f for each function of the NIC that is set to something. It is called before
	// the first Step.
	Functions(f func(id pfvf.ID, here bool, is *config.Function))
	// Find says why there can be no function of that number.
	Find(id pfvf.ID) error
	// Change sets a VF anew; then is called when it is set, or with the reason why not.
	Change(vf pfvf.ID, edit functions.Edit, then func(error))
	// Visit has f look at a VF where it is; then is called when it has.
	Visit(vf pfvf.ID, f func(abi.VFHandler), then func())
	// Announce has peers told of an address of a function instead of another; zero stands for none.
	// then is called with the answer.
	Announce(id pfvf.ID, add, drop [16]byte, then func(error))
	// Withdraw takes back all that was announced of a function before.
	Withdraw(id pfvf.ID)
	// ResetVFs resets the VFs of a PF that other shards have.
	ResetVFs(pf pfvf.ID)
}

// because is what people are told of a refusal.
func because(err error) error {
	var no *functions.Refusal
	if errors.As(err, &no) {
		return errors.New(no.Why)
	}
	return err
}
