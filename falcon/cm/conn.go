package cm

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// conn is one entry of the connection table.
type conn struct {
	id       uint32 // our name for it
	remoteID uint32 // the peer's; 0 until REP
	state    State
	peer     *peer
	passive  bool
	par      Params
	opened   bool // OutOpen without OutClose
	hasCID   bool
	msg      []byte // REQ, REP or DREQ to repeat
	tries    int
	created  Time

	timer   timer.Handle
	waiting list.Node[conn] // of its function's usage, in StateTimeWait
}

// txUse is what our side of c seals with.
func (c *conn) txUse() Use { return Use{Peer: c.peer.Host, Shard: c.par.Shard, Tenant: c.par.Tenant} }

// source is who asks for connections: a function and its host.
type source struct {
	host     HostID
	function uint32
}

func (c *conn) source() source { return source{c.peer.Host, c.par.PeerFunction} }
