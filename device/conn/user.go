package conn

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// headers is the most that RDMA headers take, in front of data, of a Falcon packet's ULP part.
const headers = wire.MaxDataHeaderLen

// User is what sits on a connection.
type User interface {
	// Connect gives it the connection, which is open, made over c.
	Connect(now falcon.Time, c rof.Carrier, p *cm.Params) error
	// Owns reports whether it has the connection still.
	Owns() bool
	// Parts reports whether what it has under way is worth finishing when a driver ends the
	// connection. Then PeerLeaves may be called: its peer has ended it.
	Parts() bool
	PeerLeaves()
	// Disconnect tells it that the connection ends.
	Disconnect(now falcon.Time)
	// GiveUp is after how long without an answer the transport gives the connection up; 0: as long
	// as it does by itself.
	GiveUp() falcon.Time
	// Explain says for people whose an RDMA packet is that the connection sent (out) or got.
	Explain(rdmaPacket []byte, out bool) string
}

// qpUser is a queue pair.
type qpUser struct {
	qp   *verbs.QP
	rdma *rof.Engine
	conn *rof.Conn
}

// Connect implements User.
func (u *qpUser) Connect(now falcon.Time, c rof.Carrier, p *cm.Params) error {
	u.conn = u.rdma.Over(c)
	if st := u.qp.Connect(now, u.conn, p.PeerQPN, pathMTU(p), p.PeerGID); st != abi.StatusOK {
		return fmt.Errorf("queue pair %#x: %s", u.qp.Number(), st)
	}
	return nil
}

// pathMTU is what the connection's MTU leaves for data.
func pathMTU(p *cm.Params) int { return abi.PathMTUFor(p.MTU - headers).Bytes() }

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

// linkUser is a link that carries datagrams, which nobody misses.
type linkUser struct {
	link *rof.Link
	rdma *rof.Engine
	conn *rof.Datagrams
}

// Connect implements User.
func (u *linkUser) Connect(now falcon.Time, c rof.Carrier, p *cm.Params) error {
	u.conn = u.rdma.Datagrams(c)
	u.link.Open(now, u.conn, p.LocalGID)
	return nil
}

// Owns implements User.
func (u *linkUser) Owns() bool { return u.link.Owns(u.conn) }

// Parts implements User.
func (u *linkUser) Parts() bool { return false }

// PeerLeaves implements User.
func (u *linkUser) PeerLeaves() {}

// Disconnect implements User.
func (u *linkUser) Disconnect(now falcon.Time) { u.link.Disconnected(now) }

// GiveUp implements User.
func (u *linkUser) GiveUp() falcon.Time { return 0 }

// Explain implements User.
func (u *linkUser) Explain(rdmaPacket []byte, out bool) string {
	return u.conn.Explain(rdmaPacket, out)
}
