package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Commands carries out its driver's commands of connection management at one moment. It is for a
// function in service.
type Commands struct {
	f   *Function
	now falcon.Time
}

var _ abi.ConnectionHandler = Commands{}

// Commands returns what carries out commands now.
func (f *Function) Commands(now falcon.Time) Commands { return Commands{f, now} }

func (c Commands) manager() Requests { return c.f.set.cfg.Manager }

// CMListen implements abi.ConnectionHandler.
func (c Commands) CMListen(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusDenied
	}
	return errorStatus(c.manager().Listen(c.f.number(), service))
}

// CMUnlisten implements abi.ConnectionHandler.
func (c Commands) CMUnlisten(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusNotFound
	}
	return errorStatus(c.manager().Unlisten(c.f.number(), service))
}

// CMConnect implements abi.ConnectionHandler.
func (c Commands) CMConnect(p *abi.CMConnect) (uint32, abi.Status) {
	f := c.f
	q := f.verbs.QP(p.QPN)
	switch {
	case q == nil:
		return 0, abi.StatusNotFound
	case p.Service >= firstReserved:
		return 0, abi.StatusDenied
	case q.State() != abi.QPStateInit || f.pending(p.QPN):
		return 0, abi.StatusBadState
	case !f.LinkUp:
		return 0, abi.StatusUnreachable
	}
	priv, st := f.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return 0, st
	}
	id, err := c.manager().Connect(c.now, cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: p.QPN, Service: p.Service, SGID: f.GID(), DGID: p.DGID,
		MTU: f.mtuOf(q) + headers, Ordered: q.Ordered(), IRD: q.IRD(), Private: priv, CompleteInError: q.CompletesInError(),
	})
	if err != nil {
		return 0, errorStatus(err)
	}
	f.conns[id] = &connection{}
	f.bind(id, p.QPN)
	return id, abi.StatusOK
}

// CMAccept implements abi.ConnectionHandler.
func (c Commands) CMAccept(p *abi.CMAccept) abi.Status {
	f := c.f
	q := f.verbs.QP(p.QPN)
	switch {
	case q == nil:
		return abi.StatusNotFound
	case q.State() != abi.QPStateInit || f.pending(p.QPN):
		return abi.StatusBadState
	}
	priv, st := f.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	known := f.conns[p.CMID]
	if known == nil || known.wired {
		return abi.StatusNotFound
	}
	if known.ordered != q.Ordered() || known.inError != q.CompletesInError() { // it would not open (tryOpen)
		if c.manager().Reject(c.now, f.number(), p.CMID, uint32(abi.StatusInvalidArgument), nil) == nil {
			f.forget(p.CMID)
		}
		return abi.StatusInvalidArgument
	}
	if st := errorStatus(c.manager().Accept(c.now, f.number(), p.CMID, p.QPN, q.IRD(), priv)); st != abi.StatusOK {
		return st
	}
	f.bind(p.CMID, p.QPN)
	return abi.StatusOK
}

// CMReject implements abi.ConnectionHandler.
func (c Commands) CMReject(p *abi.CMReject) abi.Status {
	if c.f.reserved(p.CMID) {
		return abi.StatusNotFound
	}
	priv, st := c.f.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	if st = errorStatus(c.manager().Reject(c.now, c.f.number(), p.CMID, p.Reason, priv)); st == abi.StatusOK {
		c.f.forget(p.CMID)
	}
	return st
}

// CMDisconnect implements abi.ConnectionHandler. Asked a second time, or if there is no transport to
// drain, it ends the connection at once.
func (c Commands) CMDisconnect(id uint32) abi.Status {
	switch {
	case c.f.reserved(id):
		return abi.StatusNotFound
	case c.f.set.cfg.Table.Drain(c.now, &c.f.Owner, id):
		return abi.StatusOK
	}
	return errorStatus(c.manager().Disconnect(c.now, c.f.number(), id))
}

// private copies a command's private data from guest memory.
func (f *Function) private(addr uint64, n uint16) ([]byte, abi.Status) {
	if n > abi.PrivateMax {
		return nil, abi.StatusTooLarge
	}
	b := make([]byte, n)
	if err := f.mem.Read(addr, b); err != nil {
		return nil, abi.StatusMemoryFault
	}
	return b, abi.StatusOK
}
