package device

import (
	"bufio"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Time a guest has for its first message, and for taking the last.
const (
	helloTimeout = 10 * time.Second
	finalTimeout = 2 * time.Second
)

// longAgo is a deadline that ends reads at once.
var longAgo = time.Unix(1, 0)

// session serves one control stream from hello to goodbye. Its reader is the
// goroutine that runs serve; the writer is another.
//
//	conn ──▶ reader ──▶ mailbox ──▶ shard ──▶ outbox ──▶ writer ──▶ conn
type session struct {
	nic       *NIC
	conn      queues.Session
	in        *bufio.Reader // of conn
	attach    string        // name of the attachment
	from      guestKey
	shard     *Shard
	fn        *function
	b         *binding
	unwatch   func()
	bell      queues.Bell           // nil: doorbells are messages only
	bellFault atomic.Pointer[error] // how the guest broke the bell's rules
}

// serve runs a session to its end and leaves nothing of it behind. The guest
// sees the end of the stream only after the device has stopped touching its
// memory.
func (n *NIC) serve(conn queues.Session, attach string, from guestKey) {
	s := &session{nic: n, conn: conn, in: bufio.NewReaderSize(conn, abi.MaxMessage), attach: attach, from: from, shard: n.shard}
	defer conn.Close()
	if err := s.hello(); err != nil {
		n.guestLog("guest refused", "attachment", attach, "guest", peerName(conn.Peer()), "reason", err)
		return
	}
	who := []any{"function", s.fn.ID.String(), "guest", peerName(conn.Peer())}
	n.guestLog("guest attached", append(who, "driver", s.b.driver)...)
	var writer sync.WaitGroup
	writer.Go(s.write)
	fault := s.read()
	s.b.in.close()
	if broken := s.bellFault.Load(); fault == nil && broken != nil {
		fault = *broken
	}
	s.detach(fault)
	if fault != nil {
		n.guestLog("guest broke the protocol", append(who, "reason", fault)...)
		m := abi.ErrorMsg{Code: abi.StatusInvalidArgument}
		abi.PutText(m.Reason[:], fault.Error())
		s.b.out.finish(&m)
	}
	s.b.out.close()
	_ = conn.SetWriteDeadline(time.Now().Add(finalTimeout)) // a guest that does not read cannot hold us
	writer.Wait()
	n.guestLog("guest left", who...)
}

// detach takes the function away from the session. A fault stays readable
// until the next session.
func (s *session) detach(fault error) {
	_ = s.shard.do(func(now falcon.Time) {
		if fault != nil {
			s.fn.breached(fault)
			s.fn.Fault(abi.FaultProtocol, fault.Error())
			s.shard.stopFaulted(now)
		}
		s.fn.detach(now, s.b)
		s.shard.unlisten(s.b)
	})
	if s.bell != nil {
		s.bell.Close()
	}
	s.unwatch()
	s.nic.guestMemoryIs(s, 0)
}

// read parses messages until the stream ends. The error says how the guest
// broke the rules; nil means that it left.
func (s *session) read() error {
	buf := make([]byte, abi.MaxMessage)
	for {
		h, body, err := abi.ReadMessage(s.in, buf)
		switch {
		case err == nil:
		case errors.Is(err, abi.ErrMessageTooLong), errors.Is(err, abi.ErrMessageTooShort):
			return &breach{abi.DRV201, headerBytes(&h), err}
		default:
			return nil // the guest is gone, in the middle of a message or not
		}
		if h.Type == abi.MsgGoodbye {
			return nil
		}
		ok, err := s.message(&h, body)
		if err != nil {
			return err
		}
		if !ok {
			return nil
		}
	}
}

// message hands one message on. It reports false when the session is over.
func (s *session) message(h *abi.MsgHeader, body []byte) (ok bool, err error) {
	if h.Flags != 0 && s.shard.cfg.NIC.Strict {
		dirty := [abi.DoorbellSize]byte(headerBytes(h))
		if !s.b.in.put(item{kind: itemReserved, dirty: &dirty}) {
			return false, nil
		}
	}
	switch h.Type {
	case abi.MsgDoorbell:
		if len(body) == 0 || len(body)%abi.DoorbellSize != 0 {
			return false, &breach{abi.DRV206, headerBytes(h), fmt.Errorf("doorbell message of %d bytes is not a list of %d-byte records", len(body), abi.DoorbellSize)}
		}
		return s.doorbells(body), nil
	case abi.MsgRegRead:
		var m abi.RegRead
		if err := abi.Decode(body, &m); err != nil {
			return false, &breach{abi.DRV201, headerBytes(h), err}
		}
		return s.request(item{kind: itemRegRead, tag: h.Tag, offset: m.Offset, width: m.Width}), nil
	case abi.MsgRegWrite:
		var m abi.RegWrite
		if err := abi.Decode(body, &m); err != nil {
			return false, &breach{abi.DRV201, headerBytes(h), err}
		}
		return s.request(item{kind: itemRegWrite, tag: h.Tag, offset: m.Offset, width: m.Width, value: m.Value}), nil
	case abi.MsgHeartbeat:
		var m abi.Heartbeat
		if err := abi.Decode(body, &m); err != nil {
			return false, &breach{abi.DRV201, headerBytes(h), err}
		}
		if !s.b.out.reserve() {
			return false, nil
		}
		s.b.out.reply(h.Tag, &m)
		return true, nil
	}
	clause := abi.DRV206
	if h.Type == abi.MsgHello {
		clause = abi.DRV202
	}
	return false, &breach{clause, headerBytes(h), fmt.Errorf("message type %d is not for a driver to send", uint16(h.Type))}
}

// doorbells hands records on. It reports false when the session is over.
func (s *session) doorbells(records []byte) bool {
	for ; len(records) > 0; records = records[abi.DoorbellSize:] {
		it := item{kind: itemDoorbell}
		it.doorbell.Unmarshal(records)
		if s.shard.cfg.NIC.Strict {
			it.dirty = dirtyDoorbell(records[:abi.DoorbellSize])
		}
		if !s.b.in.put(it) {
			return false
		}
	}
	return true
}

// listen lets the shard take doorbells by shared memory too, if the attachment
// can.
func (s *session) listen() error {
	r, ok := s.conn.(queues.Ringer)
	if !ok {
		return nil
	}
	bell, err := r.Bell(uint32(s.fn.ID))
	if bell == nil || err != nil {
		return err
	}
	s.bell = bell
	stopped := s.shard.do(func(falcon.Time) { err = s.shard.listen(s.b, bell) })
	return errors.Join(stopped, err)
}

// breach ends the session from the shard's side.
func (s *session) breach(err error) {
	s.bellFault.Store(&err)
	s.endReader()
}

// endReader ends the session's reader, from the shard's thread: elsewhere, since the
// stream has locks that are held while the guest's memory is copied.
func (s *session) endReader() {
	s.shard.effects.Add(effect.Func(func() {
		go func() { _ = s.conn.SetReadDeadline(longAgo) }()
	}))
}

func (s *session) request(it item) bool { return s.b.out.reserve() && s.b.in.put(it) }

// write sends what the outbox holds until it is closed or the guest is gone.
func (s *session) write() {
	buf := make([]byte, 0, abi.MaxMessage)
	for last := false; !last; {
		buf, last = s.b.out.next(buf[:0])
		if len(buf) == 0 {
			continue
		}
		if err := s.send(buf); err != nil {
			_ = s.conn.SetReadDeadline(longAgo) // ends the reader; Close would take the memory first
			s.b.out.close()
			return
		}
	}
}

// send writes messages to the guest: at once, or in pieces where a profile wants
// it (faults.go).
func (s *session) send(b []byte) error {
	seed := s.fn.split.Load()
	for seed != 0 && len(b) > 1 {
		seed = seed*6364136223846793005 + 1442695040888963407
		n := min(1+int(seed>>33%40), len(b)-1)
		if _, err := s.conn.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if seed>>60 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	_, err := s.conn.Write(b)
	return err
}
