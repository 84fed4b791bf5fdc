package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// refusal is a hello that is answered with a status.
type refusal struct {
	status abi.Status
	why    string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s", r.status, r.why) }

// hello reads the first message, gives the session its function and answers.
// After an error the function is as it was.
func (s *session) hello() error {
	h, body, err := abi.ReadMessage(s.in, make([]byte, abi.MaxMessage))
	if err != nil {
		return fmt.Errorf("no hello: %w", err)
	}
	var m abi.Hello
	if h.Type != abi.MsgHello {
		err = &refusal{abi.StatusBadState, fmt.Sprintf("the first message has type %d, want a hello (%d)", uint16(h.Type), uint16(abi.MsgHello))}
	} else if err = abi.Decode(body, &m); err != nil {
		err = &refusal{abi.StatusInvalidArgument, err.Error()}
	} else {
		err = s.open(&m)
	}
	if err == nil && !s.nic.sessions.greet(s.conn) {
		s.detach(nil)
		return errors.New("it said hello too late and made room for others")
	}
	reply := abi.HelloReply{Major: abi.VersionMajor, Minor: min(m.Minor, abi.VersionMinor)}
	var no *refusal
	var why abi.ErrorMsg
	switch {
	case errors.As(err, &no):
		reply.Status = no.status
		why.Code = no.status
		abi.PutText(why.Reason[:], no.why)
	case err != nil:
		return err
	default:
		reply.Function, reply.Features = uint32(s.fn.ID), s.b.features
	}
	answer := abi.AppendStruct(nil, h.Tag, &reply)
	if no != nil {
		answer = abi.AppendStruct(answer, 0, &why)
	}
	if _, werr := s.conn.Write(answer); werr != nil && err == nil {
		s.detach(nil)
		return fmt.Errorf("hello not answered: %w", werr)
	}
	if err == nil {
		_ = s.conn.SetDeadline(time.Time{})
		if s.nic.sessions.ending() {
			_ = s.conn.SetReadDeadline(longAgo)
		}
	}
	return err
}

// open finds the function and attaches it with the guest's memory.
func (s *session) open(m *abi.Hello) error {
	if m.Major != abi.VersionMajor {
		return &refusal{abi.StatusVersionMismatch, fmt.Sprintf("driver speaks version %d, device %d", m.Major, abi.VersionMajor)}
	}
	b := &binding{
		peer: s.conn.Peer(), attach: s.attach, driver: abi.Text(m.Driver[:]), features: m.Features & features,
		out: newOutbox(), breach: s.breach, end: s.endReader,
	}
	b.out.roused, b.out.direct = &s.shard.roused, newDirect(s.conn)
	st, why := abi.StatusOK, ""
	err := s.shard.do(func(falcon.Time) {
		s.fn, st, why = s.shard.choose(m.Function, s.attach, b.peer)
		if st == abi.StatusOK {
			b.mem = queues.NewWindowed(s.fn.window(), nil)
			b.in = newMailbox(&s.shard.inbox, s.fn, b)
			if st = s.fn.attach(b); st == abi.StatusBusy {
				why = fmt.Sprintf("%s is attached to %s", s.fn.ID, peerName(s.fn.binding.peer))
			}
		}
	})
	switch {
	case err != nil:
		return err
	case st != abi.StatusOK:
		return &refusal{st, why}
	}
	s.b = b
	s.unwatch = s.conn.Watch(func(regions []queues.Region) {
		bytes := uint64(0)
		for _, r := range regions {
			bytes += uint64(len(r.Mem))
		}
		s.nic.guestMemoryIs(s, bytes)
		// After the shard has stopped nothing uses the memory.
		_ = s.shard.do(func(falcon.Time) { b.mem.SetRegions(regions) })
	})
	if err := s.listen(); err != nil { // before the answer: the driver may ring then
		s.detach(nil)
		return err
	}
	return nil
}

// choose finds the function that a guest asks for, among those that are its
// own. Host 0 in the number stands for this NIC, as a guest need not know it.
func (s *Shard) choose(number uint32, attach string, p queues.Peer) (*function, abi.Status, string) {
	if number != abi.FunctionAssigned {
		id := pfvf.ID(number)
		if number <= pfvf.MaxID && id.Host() == 0 {
			id |= pfvf.ID(s.cfg.NIC.Host) << 16
		}
		f := s.funcs.byID[id]
		switch {
		case f == nil && s.funcs.possible(id):
			return nil, abi.StatusDenied, fmt.Sprintf("function %s is disabled", id)
		case f == nil:
			return nil, abi.StatusNotFound, fmt.Sprintf("there is no function %s", id)
		case !f.assignedTo(attach, p):
			return nil, abi.StatusDenied, fmt.Sprintf("function %s is not assigned to %s on %s", id, peerName(p), attach)
		}
		return f, abi.StatusOK, ""
	}
	var own *function
	for _, f := range s.funcs.all {
		if !f.assignedTo(attach, p) {
			continue
		}
		if f.binding == nil {
			return f, abi.StatusOK, ""
		}
		own = f
	}
	if own == nil {
		return nil, abi.StatusDenied, fmt.Sprintf("no function is assigned to %s on %s", peerName(p), attach)
	}
	return own, abi.StatusOK, "" // busy, as attach will say
}

// window is the part of its guest's memory that the function may reach.
func (f *function) window() queues.Window {
	if w := f.cfg.DMAWindow; w != nil {
		return queues.Window{Addr: uint64(w.Address), Size: uint64(w.Size)}
	}
	return queues.Window{}
}

// assignedTo says whether the configuration gives the function to this guest:
// by its context id, which the transport vouches for, or by the name of the
// unix attachment it came through.
func (f *function) assignedTo(attach string, p queues.Peer) bool {
	g := f.cfg.Guest
	switch {
	case g == nil:
		return false
	case g.Unix != "":
		return p.CID == 0 && g.Unix == attach
	}
	return p.CID != 0 && g.CID == p.CID
}
