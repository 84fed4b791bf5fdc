package fakedev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Ends of a stream that are no fault.
var (
	errGoodbye = errors.New("goodbye")
	errRefused = errors.New("refused")
)

// message handles one message of the client.
func (s *Session) message(h abi.MsgHeader, body []byte) error {
	if !s.greeted && h.Type != abi.MsgHello {
		s.Out.Send(h.Tag, &abi.HelloReply{Status: abi.StatusBadState, Major: abi.VersionMajor})
		return errRefused
	}
	switch h.Type {
	case abi.MsgHello:
		var m abi.Hello
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		if s.greeted && !s.srv.has("hello twice") {
			return errors.New("a second hello")
		}
		s.greeted = true
		r := s.hello(&m)
		s.Out.Send(h.Tag, &r)
		if r.Status != abi.StatusOK && !s.srv.has("open after refusal") {
			s.Out.Fail(r.Status, "hello for another function or version")
			return errRefused
		}
	case abi.MsgRegRead:
		var m abi.RegRead
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		r := abi.RegReply{}
		r.Value, r.Status = s.readRegister(m)
		s.Out.Send(h.Tag, &r)
	case abi.MsgRegWrite:
		var m abi.RegWrite
		if err := abi.Decode(body, &m); err != nil {
			return err
		}
		s.Out.Send(h.Tag, &abi.RegReply{Status: s.writeRegister(m)})
	case abi.MsgDoorbell:
		if (len(body) == 0 || len(body)%abi.DoorbellSize != 0) && !s.srv.has("odd doorbells") {
			return fmt.Errorf("doorbell message of %d bytes", len(body))
		}
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
		if s.srv.has("heartbeat without token") {
			m.Token = 0
		}
		s.Out.Send(h.Tag, &m)
	case abi.MsgGoodbye:
		return errGoodbye
	default:
		return fmt.Errorf("message of type %s", h.Type)
	}
	return nil
}

// hello answers a hello.
func (s *Session) hello(m *abi.Hello) abi.HelloReply {
	r := abi.HelloReply{Major: abi.VersionMajor, Minor: min(m.Minor, abi.VersionMinor), Function: s.function(), Features: m.Features & s.srv.features()}
	if s.srv.has("features nobody asked for") {
		r.Features = s.srv.features() | abi.FeatureArmWord
	}
	switch {
	case m.Major != abi.VersionMajor && !s.srv.has("any version"):
		r.Status = abi.StatusVersionMismatch
	case m.Function == abi.FunctionAssigned || m.Function == s.function() || m.Function == s.function()&0xffff:
	case s.srv.taken(m.Function):
		r.Status = abi.StatusBusy
	default:
		r.Status = abi.StatusDenied
	}
	return r
}

func (s *Session) readRegister(m abi.RegRead) (uint64, abi.Status) {
	r := abi.LookupRegister(m.Offset)
	if r == nil {
		return 0, abi.StatusNotFound
	}
	if r.Width != m.Width && !s.srv.has("any width") {
		return 0, abi.StatusInvalidArgument
	}
	if !r.Readable {
		return 0, abi.StatusDenied
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
		abi.RegFeatures: s.srv.features(), abi.RegMaxQP: maxObjects, abi.RegMaxCQ: maxObjects, abi.RegMaxMR: maxObjects, abi.RegMaxPD: maxObjects,
		abi.RegMaxSGE: maxSGE, abi.RegMaxInline: maxInline, abi.RegMaxQPEntries: maxQPEntries, abi.RegMaxCQEntries: maxCQEntries,
		abi.RegMaxReadAtomic: maxReads, abi.RegLinkUp: 1, abi.RegSpeed: 10_000, abi.RegClock: s.srv.clock(),
		abi.RegGIDHi: binary.BigEndian.Uint64(gid[:8]), abi.RegGIDLo: binary.BigEndian.Uint64(gid[8:]),
	}[m.Offset], abi.StatusOK
}

func (s *Session) writeRegister(m abi.RegWrite) abi.Status {
	r := abi.LookupRegister(m.Offset)
	switch {
	case r == nil:
		return abi.StatusNotFound
	case r.Width != m.Width:
		return abi.StatusInvalidArgument
	case !r.Writable:
		return abi.StatusDenied
	case m.Offset != abi.RegControl && s.state != abi.StateReset:
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
		return s.control(abi.Control(m.Value))
	}
	return abi.StatusOK
}

func (s *Session) control(c abi.Control) abi.Status {
	switch {
	case c == abi.ControlReset && s.srv.has("reset that keeps objects"):
		s.state, s.fault, s.sqAddr, s.cqAddr, s.adminEntries = abi.StateReset, abi.FaultNone, 0, 0, 0
		return abi.StatusOK
	case c == abi.ControlReset:
		s.reset()
		return abi.StatusOK
	case c != abi.ControlEnable:
		return abi.StatusInvalidArgument
	case s.state != abi.StateReset && !s.srv.has("enable anytime"):
		return abi.StatusBadState
	}
	layout := ring.AdminLayout(s.adminEntries)
	sq, err := s.memory.area(s.sqAddr, 1, layout)
	cq, err2 := s.memory.area(s.cqAddr, 1, layout)
	switch {
	case s.adminEntries == 0:
		return abi.StatusInvalidArgument
	case err != nil || err2 != nil:
		s.stop(abi.FaultMemory, "admin queues outside the client's memory")
		return abi.StatusMemoryFault
	}
	s.commands, s.answers = ring.NewConsumer(sq, layout), ring.NewCQWriter(cq, layout)
	s.state = abi.StateReady
	return abi.StatusOK
}

func (s *Session) doorbell(d abi.Doorbell) {
	if s.state != abi.StateReady && (s.state != abi.StateError || !s.srv.has("doorbells after a fault")) {
		return
	}
	switch d.Kind {
	case abi.DoorbellAdmin:
		s.adminDoorbell(d.Index)
	case abi.DoorbellSQ, abi.DoorbellRQ:
		q := s.qps[d.Queue]
		if q == nil {
			return
		}
		ring := q.sq
		if d.Kind == abi.DoorbellRQ {
			ring = q.rq
		}
		if _, err := ring.Doorbell(d.Index); err != nil {
			q.broken(err.Error())
			return
		}
		q.run()
		if q.peer != nil {
			q.peer.run() // it may wait for a receive
		}
	case abi.DoorbellCQArm:
		c := s.cqs[d.Queue]
		if c == nil {
			return
		}
		c.arm(d)
	}
}

// reset ends connections and drops all objects. Their numbers start again (DEV-906).
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
	s.number = 0
}
