package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
)

// HandleEvent handles one event of the falcon engine. Events of connections without a user are
// dropped.
func (e *Engine) HandleEvent(now falcon.Time, ev *falcon.Event) {
	switch u := ev.Conn.User().(type) {
	case *Conn:
		u.Handle(now, ev)
	case *Datagrams:
		u.Handle(now, ev)
	}
}

// Fill writes the RDMA headers and data of one packet of c into dst; see falcon.ULP.
func (e *Engine) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	switch u := c.User().(type) {
	case *Conn:
		return u.Fill(kind, tag, dst)
	case *Datagrams:
		return u.Fill(kind, tag, dst)
	}
	return 0, errGone
}
