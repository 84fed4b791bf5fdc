package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Commands executes a driver's connection management commands at time now. Its function must be in
// service.
type Commands struct {
	f     *Connections
	now   falcon.Time
	later func() abi.Ticket
}

var _ abi.ConnectionHandler = Commands{}

// Commands returns an executor of commands at time now. A command that the connection manager
// answers gets its ticket from later.
func (f *Connections) Commands(now falcon.Time, later func() abi.Ticket) Commands {
	return Commands{f, now, later}
}

// ask sends the command to the connection manager. When the answer comes, it calls then with the
// status and completes the command.
func (c Commands) ask(r Request, then func(now falcon.Time, st abi.Status)) abi.Status {
	t := c.later()
	c.f.ask(r, func(now falcon.Time, a *Answer) {
		st := errorStatus(a.Err)
		then(now, st)
		t.Complete(st, nil)
	})
	return abi.StatusPending
}

func nothing(falcon.Time, abi.Status) {}

// CMListen implements abi.ConnectionHandler.
func (c Commands) CMListen(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusDenied
	}
	return c.ask(Request{Kind: Listen, Service: service}, nothing)
}

// CMUnlisten implements abi.ConnectionHandler.
func (c Commands) CMUnlisten(service uint64) abi.Status {
	if service >= firstReserved {
		return abi.StatusNotFound
	}
	return c.ask(Request{Kind: Unlisten, Service: service}, nothing)
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
	case f.driver.Behind():
		return 0, abi.StatusBusy
	case q.State() != abi.QPStateInit || f.pending(p.QPN):
		return 0, abi.StatusBadState
	case !f.LinkUp:
		return 0, abi.StatusUnreachable
	}
	priv, st := c.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return 0, st
	}
	t, a := c.later(), f.begin(p.QPN)
	f.ask(Request{Kind: Connect, Connect: &cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: p.QPN, Service: p.Service, SGID: f.sgid(q), DGID: p.DGID,
		MTU: f.connector.segmentOf(q) + headers, Ordered: q.Ordered(), IRD: q.IRD(), Private: priv, CompleteInError: q.CompletesInError(),
	}}, func(now falcon.Time, is *Answer) {
		if a.begun(is, &connection{}); is.Err != nil {
			t.Complete(errorStatus(is.Err), nil)
			return
		}
		t.Complete(abi.StatusOK, &abi.CMConnectResult{CMID: is.ID})
	})
	return 0, abi.StatusPending
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
	priv, st := c.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	known := f.conns[p.CMID]
	switch {
	case known == nil || known.wired:
		return abi.StatusNotFound
	case known.qpn != 0:
		return abi.StatusBadState
	case known.ordered != q.Ordered() || known.inError != q.CompletesInError(): // tryOpen would fail
		f.tell(Request{Kind: Reject, ID: p.CMID, N: uint32(abi.StatusInvalidArgument)})
		f.forget(p.CMID)
		return abi.StatusInvalidArgument
	}
	f.bind(p.CMID, p.QPN)
	return c.ask(Request{Kind: Accept, ID: p.CMID, N: p.QPN, IRD: q.IRD(), Private: priv}, func(_ falcon.Time, st abi.Status) {
		if st != abi.StatusOK {
			f.unbind(p.CMID)
			known.qpn = 0 // the driver may try another queue pair
		}
	})
}

// CMReject implements abi.ConnectionHandler.
func (c Commands) CMReject(p *abi.CMReject) abi.Status {
	if c.f.reserved(p.CMID) {
		return abi.StatusNotFound
	}
	priv, st := c.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	return c.ask(Request{Kind: Reject, ID: p.CMID, N: p.Reason, Private: priv}, func(_ falcon.Time, st abi.Status) {
		if st == abi.StatusOK {
			c.f.forget(p.CMID)
		}
	})
}

// CMDisconnect implements abi.ConnectionHandler. If it is called a second time, or there is no
// transport to drain, it ends the connection at once.
func (c Commands) CMDisconnect(id uint32) abi.Status {
	switch {
	case c.f.reserved(id):
		return abi.StatusNotFound
	case c.f.connector.cfg.Table.Drain(c.now, &c.f.Owner, id):
		return abi.StatusOK
	}
	return c.ask(Request{Kind: Disconnect, ID: id}, nothing)
}

// private copies a command's private data from guest memory.
func (c Commands) private(addr uint64, n uint16) ([]byte, abi.Status) {
	if n > abi.PrivateMax {
		return nil, abi.StatusTooLarge
	}
	b := make([]byte, n)
	if err := c.f.mem.Read(addr, b); err != nil {
		return nil, abi.StatusMemoryFault
	}
	return b, abi.StatusOK
}
