package conn

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// headers is the most that RDMA headers take, in front of data, of a Falcon packet's ULP part.
const headers = wire.MaxDataHeaderLen

// User is what sits on a connection: a queue pair, or a link that carries datagrams.
type User struct {
	QP   *rdma.QP
	Link *rdma.Link
}

// userOf is the user that a connection was opened with.
func userOf(v any) (u User) {
	switch v := v.(type) {
	case *rdma.QP:
		u.QP = v
	case *rdma.Link:
		u.Link = v
	}
	return u
}

// value is what the transport knows the user by.
func (u User) value() any {
	if u.Link != nil {
		return u.Link
	}
	return u.QP
}

// giveUp is after how long without an answer the transport gives the connection up; 0: as long as it
// does by itself.
func (u User) giveUp() falcon.Time {
	if u.Link != nil {
		return 0
	}
	return u.QP.RetryTime()
}

// connect gives the user its connection, which is open.
func (u User) connect(now falcon.Time, s *Slot, p *cm.Params) error {
	st := abi.StatusOK
	switch mtu := pathMTU(p); {
	case u.Link != nil && s.Loop != nil:
		u.Link.OpenLoopback(now, s.Loop, p.LocalGID)
	case u.Link != nil:
		u.Link.Open(now, s.Conn, p.LocalGID)
	case s.Loop != nil:
		st = u.QP.ConnectLoopback(now, s.Loop, p.PeerQPN, mtu, p.PeerGID)
	default:
		st = u.QP.Connect(now, s.Conn, p.PeerQPN, mtu, p.PeerGID)
	}
	if st != abi.StatusOK {
		return fmt.Errorf("queue pair %#x: %s", u.QP.Number(), st)
	}
	return nil
}

// pathMTU is what the connection's MTU leaves for data.
func pathMTU(p *cm.Params) int { return abi.PathMTUFor(p.MTU - headers).Bytes() }

// owns reports whether the user still has the connection in s.
func (u User) owns(s *Slot) bool {
	switch {
	case u.Link != nil && s.Loop != nil:
		return u.Link.OwnsLoopback(s.Loop)
	case u.Link != nil:
		return u.Link.Owns(s.Conn)
	case u.QP != nil && s.Loop != nil:
		return u.QP.OwnsLoopback(s.Loop)
	}
	return u.QP != nil && u.QP.Owns(s.Conn)
}

// disconnect tells the user that its connection ends.
func (u User) disconnect(now falcon.Time) {
	if u.Link != nil {
		u.Link.Disconnected(now)
		return
	}
	if _, _, wired := u.QP.Wired(); wired {
		u.QP.PeerLeft(now)
		return
	}
	u.QP.Disconnected(now)
}
