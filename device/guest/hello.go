package guest

import (
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// hello reads the first message, gives the driver its function and answers. After an error the
// function is unchanged.
func (s *Stream) hello() error {
	h, body, err := abi.ReadMessage(s.in, make([]byte, abi.MaxMessage))
	if err != nil {
		return fmt.Errorf("no hello: %w", err)
	}
	var m abi.Hello
	if h.Type != abi.MsgHello {
		err = &Refusal{abi.StatusBadState, fmt.Sprintf("the first message has type %d, want a hello (%d)", uint16(h.Type), uint16(abi.MsgHello))}
	} else if err = abi.Decode(body, &m); err != nil {
		err = &Refusal{abi.StatusInvalidArgument, err.Error()}
	} else {
		s.session, err = Open(s.cfg.Desk, s.conn, s.cfg.From, s.cfg.Attachment, &m, s)
	}
	if err == nil && !s.cfg.Sessions.greet(s) {
		_ = s.session.Close(nil)
		return errors.New("it said hello too late and made room for others")
	}
	reply := abi.HelloReply{Major: abi.VersionMajor, Minor: min(m.Minor, abi.VersionMinor)}
	var no *Refusal
	var why abi.ErrorMsg
	switch {
	case errors.As(err, &no):
		reply.Status = no.Status
		why.Code = no.Status
		abi.PutText(why.Reason[:], no.Why)
	case err != nil:
		return err
	default:
		reply.Function, reply.Features = s.session.Function(), s.session.Features()
	}
	answer := abi.AppendStruct(nil, h.Tag, &reply)
	if no != nil {
		answer = abi.AppendStruct(answer, 0, &why)
	}
	if _, werr := s.conn.Write(answer); werr != nil && err == nil {
		_ = s.session.Close(nil)
		return fmt.Errorf("hello not answered: %w", werr)
	}
	if err == nil {
		_ = s.conn.SetDeadline(time.Time{})
		if s.ended.Load() { // a driver may break the rules as soon as it has the answer
			_ = s.conn.SetReadDeadline(longAgo)
		}
	}
	return err
}
