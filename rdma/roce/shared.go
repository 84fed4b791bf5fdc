package roce

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// shared holds what the connections of an engine share.
type shared struct {
	host       transport.Host
	failing    list.List[Conn]
	gone       list.List[requester] // of unreliable connections that have sent packets
	creditless []*requester         // requesters that wait for credit, next first
	timers     timer.Wheel[*Conn]
	congestion cc.Algorithm

	// Scratch memory of one call.
	out    wire.Headers
	packet transport.Packet
	atomic transport.Atomic
	word   [8]byte
}
