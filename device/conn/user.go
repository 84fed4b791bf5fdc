package conn

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// headers is the maximum length of RDMA headers in front of the data in a Falcon packet.
const headers = wire.MaxDataHeaderLen

// User uses a connection: a queue pair or a link.
type User interface {
	// Connect passes it the open connection.
	Connect(now falcon.Time, c rof.Pipe, p *cm.Params) error
	// Owns reports whether it still has the connection.
	Owns() bool
	// Parts reports whether its work in flight should be finished when a driver ends the
	// connection. Only then may PeerLeaves be called, when the peer has ended the connection.
	Parts() bool
	PeerLeaves()
	// Disconnect tells it that the connection ends.
	Disconnect(now falcon.Time)
	// GiveUp returns the time without an answer after which the transport gives the connection up;
	// 0: the transport's default.
	GiveUp() falcon.Time
	// Explain describes, for people, who owns an RDMA packet that the connection sent (out) or
	// received.
	Explain(rdmaPacket []byte, out bool) string
	// Pair returns the numbers of the queue pairs at both ends; 0: the connection has none.
	Pair() (qpn, peer uint32)
}

// qpUser is a queue pair.
type qpUser struct {
	qp   *verbs.QP
	rdma *rof.Engine
	conn *rof.Conn
}

// Connect implements User.
func (u *qpUser) Connect(now falcon.Time, c rof.Pipe, p *cm.Params) error {
	u.conn = u.rdma.Over(c)
	if st := u.qp.Connect(now, u.conn, p.PeerQPN, segment(p), p.PeerGID); st != abi.StatusOK {
		return fmt.Errorf("queue pair %#x: %s", u.qp.Number(), st)
	}
	return nil
}

// PathULP returns the ULP part of one packet, headers and data, with the largest segment of at most n
// bytes of data.
func PathULP(n int) int { return wire.SegmentFor(n) + headers }

// segment returns the segment that fits the connection's MTU.
func segment(p *cm.Params) int { return wire.SegmentFor(p.MTU - headers) }

// Owns implements User.
func (u *qpUser) Owns() bool { return u.qp.Owns(u.conn) }

// Parts implements User.
func (u *qpUser) Parts() bool { return true }

// PeerLeaves implements User.
func (u *qpUser) PeerLeaves() { u.qp.PeerLeaves() }

// Disconnect implements User.
func (u *qpUser) Disconnect(now falcon.Time) {
	if _, _, wired := u.qp.Wired(); wired {
		u.qp.PeerLeft(now)
		return
	}
	u.qp.Disconnected(now)
}

// GiveUp implements User.
func (u *qpUser) GiveUp() falcon.Time { return u.qp.RetryTime() }

// Explain implements User.
func (u *qpUser) Explain(rdmaPacket []byte, out bool) string { return u.conn.Explain(rdmaPacket, out) }

// Pair implements User.
func (u *qpUser) Pair() (qpn, peer uint32) { return u.conn.Pair() }

// linkUser is a link that carries datagrams, whose loss is allowed.
type linkUser struct {
	link *rof.Link
	pipe rof.Pipe
}

// Connect implements User.
func (u *linkUser) Connect(now falcon.Time, c rof.Pipe, p *cm.Params) error {
	u.pipe = c
	u.link.Open(now, c, p.LocalGID)
	return nil
}

// Owns implements User.
func (u *linkUser) Owns() bool { return u.link.Owns(u.pipe) }

// Parts implements User.
func (u *linkUser) Parts() bool { return false }

// PeerLeaves implements User.
func (u *linkUser) PeerLeaves() {}

// Disconnect implements User.
func (u *linkUser) Disconnect(now falcon.Time) { u.link.Disconnected(now) }

// GiveUp implements User.
func (u *linkUser) GiveUp() falcon.Time { return 0 }

// Explain implements User.
func (u *linkUser) Explain([]byte, bool) string { return "datagrams" }

// Pair implements User.
func (u *linkUser) Pair() (qpn, peer uint32) { return 0, 0 }
