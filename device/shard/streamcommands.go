package shard

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// streamCommands carries out a driver's commands of connection management.
type streamCommands struct {
	p   *streamPort
	now falcon.Time
	mem *queues.Memory
}

var _ abi.ConnectionHandler = streamCommands{}

// portOfService returns the TCP port of a service: its low 16 bits, alone or in RDMA_PS_TCP, as RDMA CM
// numbers services.
func portOfService(service uint64) (port uint16, ok bool) {
	const rdmaPSTCP = 0x0106
	port = uint16(service)
	return port, port != 0 && (service>>16 == 0 || service>>16 == rdmaPSTCP)
}

// maxStreamListeners is how many services a function may listen to: as many as TCP allows.
const maxStreamListeners = 16

// CMListen implements abi.ConnectionHandler.
func (c streamCommands) CMListen(service uint64) abi.Status {
	port, ok := portOfService(service)
	_, listens := c.p.services[port]
	switch {
	case !ok:
		return abi.StatusInvalidArgument
	case listens:
		return abi.StatusAddressInUse
	case len(c.p.services) == maxStreamListeners:
		return abi.StatusNoResources
	}
	c.p.services[port] = service
	c.p.use(port)
	c.p.s.tcp.Listen(c.p.function, port)
	return abi.StatusOK
}

// CMUnlisten implements abi.ConnectionHandler.
func (c streamCommands) CMUnlisten(service uint64) abi.Status {
	port, _ := portOfService(service)
	if own, ok := c.p.services[port]; !ok || own != service {
		return abi.StatusNotFound
	}
	delete(c.p.services, port)
	c.p.unuse(port)
	c.p.s.tcp.Unlisten(c.p.function, port)
	return abi.StatusOK
}

// CMConnect implements abi.ConnectionHandler.
func (c streamCommands) CMConnect(p *abi.CMConnect) (uint32, abi.Status) {
	q, st := c.free(p.QPN)
	if st != abi.StatusOK {
		return 0, st
	}
	port, ok := portOfService(p.Service)
	local := p.SrcPort
	if local == 0 {
		local = c.p.local()
	}
	switch {
	case !ok:
		return 0, abi.StatusInvalidArgument
	case p.SrcPort != 0 && c.p.taken(p.SrcPort):
		return 0, abi.StatusAddressInUse
	case c.p.owner.driver.Behind():
		return 0, abi.StatusBusy
	case local == 0:
		return 0, abi.StatusNoResources
	}
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return 0, st
	}
	x := c.p.newConn(local, c.p.s.tcp.Connect(c.p.function, local, netip.AddrPortFrom(netip.AddrFrom16(p.DGID).Unmap(), port)))
	x.state, x.private = streamCalling, private
	c.bind(x, q)
	return x.id, abi.StatusOK
}

// free returns a queue pair that may be connected.
func (c streamCommands) free(qpn uint32) (*verbs.QP, abi.Status) {
	q := c.p.verbs().QP(qpn)
	switch {
	case q == nil:
		return nil, abi.StatusNotFound
	case q.State() != abi.QPStateInit || c.p.ofQP[qpn] != nil:
		return nil, abi.StatusBadState
	}
	return q, abi.StatusOK
}

func (c streamCommands) bind(x *streamConn, q *verbs.QP) {
	x.qpn = q.Number()
	c.p.ofQP[x.qpn] = x
}

// asked returns a connection that waits for the driver's answer.
func (c streamCommands) asked(id uint32) (*streamConn, abi.Status) {
	x := c.p.conns[id]
	switch {
	case x == nil:
		return nil, abi.StatusNotFound
	case x.state != streamAsked:
		return nil, abi.StatusBadState
	}
	return x, abi.StatusOK
}

// CMAccept implements abi.ConnectionHandler.
func (c streamCommands) CMAccept(p *abi.CMAccept) abi.Status {
	q, st := c.free(p.QPN)
	if st != abi.StatusOK {
		return st
	}
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	x, st := c.asked(p.CMID)
	if st != abi.StatusOK {
		return st
	}
	c.bind(x, q)
	x.stream.Accept(c.now, x.settings(q, private))
	if st = x.attach(c.now, q); st != abi.StatusOK {
		x.forget()
		return st
	}
	x.notify(x.ofPeer(abi.EventEstablished, x.stream.Peer()), "")
	return abi.StatusOK
}

// CMReject implements abi.ConnectionHandler. The wire has no room for a reason but the private data.
func (c streamCommands) CMReject(p *abi.CMReject) abi.Status {
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	x, st := c.asked(p.CMID)
	if st != abi.StatusOK {
		return st
	}
	x.stream.Reject(c.now, private)
	x.forget()
	return abi.StatusOK
}

// CMDisconnect implements abi.ConnectionHandler.
func (c streamCommands) CMDisconnect(id uint32) abi.Status {
	x := c.p.conns[id]
	if x == nil {
		return abi.StatusNotFound
	}
	x.end(c.now)
	return abi.StatusOK
}

// readPrivate copies a command's private data from guest memory.
func readPrivate(mem *queues.Memory, addr uint64, n uint16) ([]byte, abi.Status) {
	if n > abi.PrivateMax {
		return nil, abi.StatusTooLarge
	}
	b := make([]byte, n)
	if err := mem.Read(addr, b); err != nil {
		return nil, abi.StatusMemoryFault
	}
	return b, abi.StatusOK
}
