package conn

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// headers is the most that RDMA headers take, in front of data, of a Falcon packet's ULP part.
const headers = wire.MaxDataHeaderLen

// User is what sits on a connection: a queue pair, or a link that carries datagrams.
type User struct {
	QP   *rdma.QP
	Link *rdma.Link
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
func (u User) connect(now falcon.Time, s *Slot, p *cm.Params, rdma *rof.Engine) error {
	s.user = u
	if u.Link != nil {
		c := rdma.Datagrams(s.carrier())
		s.over = c
		u.Link.Open(now, c, p.LocalGID)
		return nil
	}
	c := rdma.Over(s.carrier())
	s.over = c
	if st := u.QP.Connect(now, c, p.PeerQPN, pathMTU(p), p.PeerGID); st != abi.StatusOK {
		return fmt.Errorf("queue pair %#x: %s", u.QP.Number(), st)
	}
	return nil
}

// pathMTU is what the connection's MTU leaves for data.
func pathMTU(p *cm.Params) int { return abi.PathMTUFor(p.MTU - headers).Bytes() }

// owns reports whether the user still has the connection in s.
func (u User) owns(s *Slot) bool {
	switch c := s.over.(type) {
	case transport.Conn:
		return u.QP != nil && u.QP.Owns(c)
	case transport.DatagramConn:
		return u.Link != nil && u.Link.Owns(c)
	}
	return false
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
