package fakedev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

var errGoodbye = errors.New("goodbye")

// Session is one client and its function. Its fields are guarded by the server's lock.
type Session struct {
	srv     *Server
	conn    *net.UnixConn
	regions []region
	index   int

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

	outMu sync.Mutex
	out   []byte
	wake  chan struct{}
	gone  chan struct{}
}

// gid is the function's address: 10.0.0.1 for the first client, and so on.
func (s *Session) gid() [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(s.index + 1)}
}

// reset ends connections and drops all objects.
func (s *Session) reset() {
	for _, q := range s.qps {
		s.disconnect(q)
	}
	s.dropRequests()
	s.state, s.fault = abi.StateReset, abi.FaultNone
	s.sqAddr, s.cqAddr, s.adminEntries = 0, 0, 0
	s.commands, s.answers = nil, nil
	s.pds, s.mrs, s.cqs, s.qps = map[uint32]bool{}, map[uint32]*mr{}, map[uint32]*cq{}, map[uint32]*qp{}
	s.listeners = map[uint64]bool{}
}

// Raw sends bytes as they are.
func (s *Session) Raw(b []byte) {
	s.outMu.Lock()
	s.out = append(s.out, b...)
	s.outMu.Unlock()
	s.poke()
}

// Send sends a message.
func (s *Session) Send(tag uint64, m abi.Message) { s.Raw(abi.AppendStruct(nil, tag, m)) }

// Fail sends MsgError. The caller closes the stream.
func (s *Session) Fail(code abi.Status, reason string) {
	m := abi.ErrorMsg{Code: code}
	copy(m.Reason[:], reason)
	s.Send(0, &m)
}

// CQEvent sends an event for the completion queues cqns.
func (s *Session) CQEvent(cqns ...uint32) {
	var b []byte
	for _, n := range cqns {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	s.Raw(abi.AppendMessage(nil, abi.MsgCQEvent, 0, b))
}

// Fault stops the function.
func (s *Session) Fault(f abi.Fault, reason string) {
	s.srv.mu.Lock()
	defer s.srv.mu.Unlock()
	s.stop(f, reason)
}

// Hangup closes the stream.
func (s *Session) Hangup() { s.conn.Close() }

func (s *Session) stop(f abi.Fault, reason string) {
	s.state, s.fault = abi.StateError, f
	e := abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(f), PrivLen: uint16(min(len(reason), 64))}
	copy(e.Priv[:], reason)
	s.Send(0, &e)
}

func (s *Session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write is the session's writer goroutine.
func (s *Session) write() {
	for last := false; !last; {
		select {
		case <-s.wake:
		case <-s.gone:
			last = true
		}
		s.outMu.Lock()
		out := s.out
		s.out = nil
		s.outMu.Unlock()
		if len(out) > 0 {
			if _, err := s.conn.Write(out); err != nil {
				return
			}
		}
	}
	s.conn.Close()
}

// message handles one message of the client.
func (s *Session) message(h abi.MsgHeader, body []byte) error {
	switch h.Type {
	case abi.MsgHello:
		var m abi.Hello
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		r := abi.HelloReply{Major: abi.VersionMajor, Minor: min(m.Minor, abi.VersionMinor), Function: s.function(), Features: m.Features & abi.FeatureExtendedVerbs}
		if m.Major != abi.VersionMajor {
			r.Status = abi.StatusVersionMismatch
		} else if m.Function != abi.FunctionAssigned && m.Function != s.function() && m.Function != s.function()&0xffff {
			r.Status = abi.StatusDenied
		}
		s.Send(h.Tag, &r)
	case abi.MsgRegRead:
		var m abi.RegRead
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		r := abi.RegReply{}
		r.Value, r.Status = s.readRegister(m)
		s.Send(h.Tag, &r)
	case abi.MsgRegWrite:
		var m abi.RegWrite
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		s.Send(h.Tag, &abi.RegReply{Status: s.writeRegister(m)})
	case abi.MsgDoorbell:
		for ; len(body) >= abi.DoorbellSize; body = body[abi.DoorbellSize:] {
			var d abi.Doorbell
			d.Unmarshal(body)
			s.doorbell(d)
		}
	case abi.MsgHeartbeat:
		var m abi.Heartbeat
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		s.Send(h.Tag, &m)
	case abi.MsgGoodbye:
		return errGoodbye
	default:
		return fmt.Errorf("message of type %s", h.Type)
	}
	return nil
}

// function is host 1, PF 0, VF 1 for the first client, and so on.
func (s *Session) function() uint32 { return 1<<16 | uint32(s.index+1) }

func (s *Session) readRegister(m abi.RegRead) (uint64, abi.Status) {
	r := abi.LookupRegister(m.Offset)
	if r == nil {
		return 0, abi.StatusNotFound
	}
	if r.Width != m.Width {
		return 0, abi.StatusInvalidArgument
	}
	gid := s.gid()
	mtu := uint64(4096)
	if s.srv.MTU != 0 {
		mtu = uint64(s.srv.MTU)
	}
	return map[uint32]uint64{
		abi.RegMagic: abi.Magic, abi.RegVersion: abi.VersionMajor<<16 | abi.VersionMinor, abi.RegFunction: uint64(s.function()),
		abi.RegFunctionType: uint64(abi.FunctionVF), abi.RegState: uint64(s.state), abi.RegFault: uint64(s.fault),
		abi.RegAdminSQ: s.sqAddr, abi.RegAdminCQ: s.cqAddr, abi.RegAdminEntries: uint64(s.adminEntries),
		abi.RegMAC: 0x000000000002 | uint64(s.index+1)<<40, abi.RegTenant: 7, abi.RegMTU: mtu,
		abi.RegGIDHi: binary.BigEndian.Uint64(gid[:8]), abi.RegGIDLo: binary.BigEndian.Uint64(gid[8:]),
	}[m.Offset], abi.StatusOK
}

func (s *Session) writeRegister(m abi.RegWrite) abi.Status {
	if m.Offset != abi.RegControl && s.state != abi.StateReset {
		return abi.StatusBadState
	}
	switch m.Offset {
	case abi.RegAdminSQ:
		s.sqAddr = m.Value
	case abi.RegAdminCQ:
		s.cqAddr = m.Value
	case abi.RegAdminEntries:
		s.adminEntries = uint32(m.Value)
	case abi.RegControl:
		if abi.Control(m.Value) == abi.ControlReset {
			s.reset()
			return abi.StatusOK
		}
		sq, err := s.page(s.sqAddr)
		cq, err2 := s.page(s.cqAddr)
		if err != nil || err2 != nil || s.adminEntries == 0 {
			return abi.StatusInvalidArgument
		}
		s.commands = ring.NewConsumer(paged{sq}, ring.AdminLayout(s.adminEntries))
		s.answers = ring.NewCQWriter(paged{cq}, ring.AdminLayout(s.adminEntries))
		s.state = abi.StateReady
	default:
		return abi.StatusDenied
	}
	return abi.StatusOK
}

func (s *Session) doorbell(d abi.Doorbell) {
	if s.state != abi.StateReady {
		return
	}
	switch d.Kind {
	case abi.DoorbellAdmin:
		s.adminDoorbell(d.Index)
	case abi.DoorbellSQ, abi.DoorbellRQ:
		q := s.qps[d.Queue]
		if q == nil {
			s.stop(abi.FaultDoorbell, fmt.Sprintf("%s doorbell for QP %d, which does not exist", d.Kind, d.Queue))
			return
		}
		ring := q.sq
		if d.Kind == abi.DoorbellRQ {
			ring = q.rq
		}
		if _, err := ring.Doorbell(d.Index); err != nil {
			s.stop(abi.FaultDoorbell, err.Error())
			return
		}
		q.run()
		if q.peer != nil {
			q.peer.run() // it may wait for a receive
		}
	case abi.DoorbellCQArm:
		c := s.cqs[d.Queue]
		if c == nil {
			s.stop(abi.FaultDoorbell, fmt.Sprintf("arm doorbell for CQ %d, which does not exist", d.Queue))
			return
		}
		c.arm(d)
	}
}
