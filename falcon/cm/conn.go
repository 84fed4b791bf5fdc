package cm

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// conn is one entry of the connection table.
type conn struct {
	id       uint32 // our ID
	remoteID uint32 // the peer's ID; 0 until REP
	state    State
	peer     *peer
	passive  bool
	par      Params
	opened   bool // OutOpen was emitted, OutClose not yet
	hasCID   bool
	msg      []byte // REQ, REP or DREQ to repeat
	tries    int
	created  Time

	timer   timer.Handle
	waiting list.Node[conn] // in its function's usage, in StateTimeWait
}

// txUse returns the use under which this side of c seals.
func (c *conn) txUse() Use { return Use{Peer: c.peer.Host, Shard: c.par.Shard, Tenant: c.par.Tenant} }

// source identifies who requests connections: a function and its host.
type source struct {
	host     HostID
	function uint32
}

func (c *conn) source() source { return source{c.peer.Host, c.par.PeerFunction} }
