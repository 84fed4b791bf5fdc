package fakedev

import (
	"net"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Session is one client and its function. Its fields are guarded by the server's lock.
type Session struct {
	srv    *Server
	conn   *net.UnixConn
	memory memory
	index  int

	greeted      bool // it has said hello
	state        abi.State
	fault        abi.Fault
	sqAddr       uint64
	cqAddr       uint64
	adminEntries uint32
	commands     *ring.Consumer
	answers      *ring.CQWriter

	number    uint32 // of the last object made
	pds       map[uint32]bool
	mrs       map[uint32]*mr // by key
	cqs       map[uint32]*cq
	qps       map[uint32]*qp
	listeners map[uint64]bool

	// Out is what goes to the client.
	Out Outbox
}

// gid is the function's address: 10.0.0.1 for the first client, and so on.
func (s *Session) gid() [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(s.index + 1)}
}

// Hangup closes the stream.
func (s *Session) Hangup() { s.conn.Close() }

func (s *Session) stop(f abi.Fault, reason string) {
	if s.state == abi.StateError && !s.srv.has("doorbells after a fault") {
		return
	}
	s.state, s.fault = abi.StateError, f
	if s.srv.has("fault without event") {
		return
	}
	e := abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(f), PrivLen: uint16(min(len(reason), 64))}
	copy(e.Priv[:], reason)
	s.Out.Send(0, &e)
}

// function is host 1, PF 0, VF 1 for the first client, and so on.
func (s *Session) function() uint32 { return 1<<16 | uint32(s.index+1) }

func (s *Session) next() uint32 {
	s.number++
	return s.number + 1 // QP numbers are not 0 or 1
}

// find returns the memory [addr, addr+n) of the region with that key, if rights and bounds allow.
func (s *Session) find(key uint32, pdn uint32, addr uint64, n int, access uint32) (*mr, uint64) {
	m := s.mrs[key]
	if m == nil || m.pdn != pdn || m.access&access != access || addr < m.iova || addr-m.iova > m.length || uint64(n) > m.length-(addr-m.iova) {
		return nil, 0
	}
	return m, addr - m.iova + m.skew
}
