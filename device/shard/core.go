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

// Core is the shard's access to the state that all shards of the NIC share. None of its methods
// waits: requests made in a Step are sent at its end (Flush), and the core answers by Orders.
type Core interface {
	conn.Requests
	security.Requester
	// SPIRefused reports a packet of a connection that came with another key than the one issued
	// for it.
	SPIRefused(u security.Use)
	// Knows reports whether a GID in a tenant belongs to a function, here or at a peer.
	Knows(tenant uint32, gid [16]byte) bool
	VFs
	// Opener returns an opener for what peers seal with the keys that the core issues.
	Opener() *security.Opener
	// Credits returns the shard's credit node for the host, whose parent is the node for the NIC.
	Credits() *credit.Node
	// Routes returns the routes of plain IP. SetPort and RemovePort change them.
	Routes() *gateway.Routes
	SetPort(function uint32, at gateway.Place)
	RemovePort(function uint32)
	// Flush sends the requests made so far, and reports whether there were any.
	Flush() bool
}

// VFs is the shard's access to the settings of functions, of which it owns a part.
type VFs interface {
	// Functions calls f for each function of the NIC that has settings. It is called before the
	// first Step.
	Functions(f func(id pfvf.ID, here bool, is *config.Function))
	// Find returns an error if no function can have this ID.
	Find(id pfvf.ID) error
	// Change changes the settings of a VF; then is called when they are applied, or with the reason
	// why not.
	Change(vf pfvf.ID, edit functions.Edit, then func(error))
	// Visit calls f with a VF on the VF's own shard; then is called after that.
	Visit(vf pfvf.ID, f func(abi.VFHandler), then func())
	// Announce tells peers that a function has the address add and no longer drop; zero means none.
	// then is called with the answer.
	Announce(id pfvf.ID, add, drop [16]byte, then func(error))
	// Withdraw takes back everything that was announced for a function before.
	Withdraw(id pfvf.ID)
	// ResetVFs resets the VFs of a PF that belong to other shards.
	ResetVFs(pf pfvf.ID)
}

// because returns the reason of a refusal in the form that operators see.
func because(err error) error {
	var no *functions.Refusal
	if errors.As(err, &no) {
		return errors.New(no.Why)
	}
	return err
}
